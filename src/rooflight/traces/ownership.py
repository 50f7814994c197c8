"""Which op of the host each piece of a device's work belongs to, and at which ops a trace is accounted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rooflight.records.session import Flags, Int32
from rooflight.traces.nesting import Nesting
from rooflight.traces.trace import UNKNOWN, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """``call[k]`` is the call that launched work k, ``launched_by[k]`` the innermost op that did, ``accounted[k]`` the
    op at which it is accounted; ``UNKNOWN`` where there is none. ``before_trace[k]``: it was launched before the trace
    began.
    """

    call: Int32
    launched_by: Int32
    accounted: Int32
    before_trace: Flags

    def without(self, chosen: Flags) -> Ownership:
        """The same with the chosen work belonging to no op."""
        return Ownership(
            call=self.call,
            launched_by=np.where(chosen, np.int32(UNKNOWN), self.launched_by),
            accounted=np.where(chosen, np.int32(UNKNOWN), self.accounted),
            before_trace=self.before_trace,
        )


def owners(trace: Trace, nesting: Nesting, levels: Flags) -> Ownership:
    """Join work to ops by the calls that launched it.

    Work is accounted at the outermost op around its launch that ``levels`` marks, or, if none is, at the
    innermost op, so that a custom op's own kernels are listed under its name.
    """
    call, launched_by, before = _launchers(trace, nesting)
    at = _levels(trace, nesting, levels)
    known = launched_by != UNKNOWN
    accounted = np.full(len(launched_by), UNKNOWN, dtype=np.int32)
    accounted[known] = np.where(at[launched_by[known]] != UNKNOWN, at[launched_by[known]], launched_by[known])
    return Ownership(call=call, launched_by=launched_by, accounted=accounted, before_trace=before)


def _launchers(trace: Trace, nesting: Nesting) -> tuple[Int32, Int32, Flags]:
    work, calls = trace.work, trace.calls
    call_of = calls_of(trace)
    known = call_of != UNKNOWN
    found = np.full(len(work), UNKNOWN, dtype=np.int32)
    found[known] = nesting.call_op[call_of[known]]
    begun = min(calls.start.min() if len(calls) else np.inf, trace.ops.start.min() if len(trace.ops) else np.inf)
    correlated = calls.correlation[calls.correlation != UNKNOWN]
    before = ~known & (work.start < begun)
    if len(correlated):
        before |= ~known & (work.correlation < correlated.min())
    return call_of, found, before


def calls_of(trace: Trace) -> Int32:
    """The call that launched each piece of work, by correlation; ``UNKNOWN`` where the trace has none.

    Of several calls with one correlation (a runtime's call and the driver's inside it, or several processes in one
    trace) it is the last that began before the work, or the first if all began after it.
    """
    work, calls = trace.work, trace.calls
    correlation = np.concatenate([calls.correlation, work.correlation])
    begun = np.concatenate([calls.start, work.start])
    is_work = np.arange(len(correlation)) >= len(calls)
    order = np.lexsort((is_work, begun, correlation))
    is_call, ids = ~is_work[order], correlation[order]
    last = np.maximum.accumulate(np.where(is_call, np.arange(len(order)), UNKNOWN))
    later = np.minimum.accumulate(np.where(is_call, np.arange(len(order)), len(order))[::-1])[::-1]
    found = np.full(len(work), UNKNOWN, dtype=np.int32)
    for nearest in (later, last):  # the last before it wins
        at = np.clip(nearest, 0, max(len(order) - 1, 0))
        same = (nearest == at) & ~is_call & (ids != UNKNOWN) & (ids[at] == ids)
        found[order[same] - len(calls)] = order[at[same]]
    return found


def _levels(trace: Trace, nesting: Nesting, levels: Flags) -> Int32:
    """The outermost marked op around each op, itself included."""
    parent, is_level = nesting.parent.tolist(), levels.tolist()
    found = [UNKNOWN] * len(trace.ops)
    for op in nesting.order.tolist():
        around = parent[op]
        if around != UNKNOWN and found[around] != UNKNOWN:
            found[op] = found[around]
        elif is_level[op]:
            found[op] = op
    return np.array(found, dtype=np.int32)


def accounted_ops(trace: Trace, nesting: Nesting, levels: Flags) -> Int32:
    """Every op at which the host's ops are accounted, in the order in which they began."""
    at = _levels(trace, nesting, levels)
    own = np.flatnonzero(at == np.arange(len(at)))
    return own[np.argsort(trace.ops.start[own], kind="stable")].astype(np.int32)
