"""Which op, module and phase each piece of a device's work belongs to, and at which ops a trace is accounted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from rooflight.records.record import Direction, ModuleEntry
from rooflight.records.session import Flags, Int32
from rooflight.traces.file.nesting import Nesting, enclosing, parents_of
from rooflight.traces.file.trace import LOADER_FRAME, MODULE, UNKNOWN, Spans, Trace


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


OUTSIDE: Final = ModuleEntry("", "")

_NUMBERED: Final = re.compile(r"_\d+$")
_OPTIMIZER: Final = "Optimizer.step#"
_NOT_PHASES: Final = (
    "ProfilerStep",
    _OPTIMIZER,
    "Optimizer.zero_grad#",
    "nccl:",
    "gloo:",
    "## Call CompiledFxGraph",
    "rooflight.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The module, phase and direction of one op."""

    module: ModuleEntry
    phase: str
    direction: Direction


class Places:
    """Finds the place of each op of a trace. Modules are known where Python frames were recorded (``with_stack=True``
    or ``with_modules=True``): by class and number, in the order in which they were first called.
    """

    def __init__(self, trace: Trace, nesting: Nesting) -> None:
        self._trace, self._nesting = trace, nesting
        names = np.array([name.startswith(MODULE) for name in trace.names], dtype=np.bool_)
        is_module = names[trace.ranges.name] if len(trace.ranges) else np.empty(0, dtype=np.bool_)
        self._modules = _Around(trace, trace.ranges.where(is_module))
        annotations = trace.ranges.where(~is_module)
        self._annotations = _Around(trace, annotations)
        caller = _callers_of_backward(trace, annotations)
        self._around_backward = _Around(trace, annotations, caller(trace.ops))
        self._of_calls = _Around(trace, annotations, caller(trace.calls))
        self._forward_of: dict[int, int] | None = None
        self._entries: dict[int, ModuleEntry] = {UNKNOWN: OUTSIDE}
        self._phases, self._optimizes = self._annotations.phases()
        self._backward: dict[int, int] = {UNKNOWN: UNKNOWN}

    def place(self, op: int) -> Place:
        """The place of one op."""
        forward = self._forward(op)
        phase, direction = self._phase(op, forward)
        return Place(module=self._module(op if forward == UNKNOWN else forward), phase=phase, direction=direction)

    def phase(self, op: int) -> tuple[str, Direction]:
        """The phase of one op, and its direction."""
        return self._phase(op, self._forward(op))

    def _phase(self, op: int, forward: int) -> tuple[str, Direction]:
        around = self._annotations.innermost(op)
        if forward != UNKNOWN:
            direction = Direction.BACKWARD
        elif self._optimizes[around]:
            direction = Direction.OPTIMIZER
        else:
            direction = Direction.FORWARD
        return self._phases[around] or self._phases[self._around_backward.innermost(op)], direction

    def annotations(self, op: int) -> list[str]:
        """The annotations around one op, the innermost first."""
        return self._annotations.names_around(op)

    def phase_of_call(self, call: int) -> str:
        """The phase in which a call of the device's runtime ran."""
        return self._phases[self._of_calls.innermost(call)]

    def _forward(self, op: int) -> int:
        """The op of the forward pass whose backward this op is part of."""
        ops, parent = self._trace.ops, self._nesting.parent
        passed, around = [], op
        while around not in self._backward and not (ops.forward_thread[around] > 0 and ops.sequence[around] >= 0):
            passed.append(around)
            around = int(parent[around])
        around = self._backward.setdefault(around, around)
        self._backward.update(dict.fromkeys(passed, around))
        if around == UNKNOWN:
            return UNKNOWN
        if self._forward_of is None:
            forward = np.flatnonzero((ops.sequence >= 0) & (ops.forward_thread <= 0))
            self._forward_of = dict(zip(ops.sequence[forward].tolist(), forward.tolist(), strict=True))
        return self._forward_of.get(int(ops.sequence[around]), UNKNOWN)

    def _module(self, op: int) -> ModuleEntry:
        innermost = self._modules.innermost(op)
        if innermost not in self._entries:
            names = [name.removeprefix(MODULE) for name in self._modules.names_around(op)]
            self._entries[innermost] = ModuleEntry(".".join(reversed(names)), _NUMBERED.sub("", names[0]))
        return self._entries[innermost]


def is_phase(name: str) -> bool:
    """Whether an annotation is the user's."""
    return not name.startswith(_NOT_PHASES) and LOADER_FRAME not in name


def phase_of(names: Iterable[str]) -> str:
    """The innermost phase among annotations, the innermost first; empty if none is one."""
    return next((name for name in names if is_phase(name)), "")


class _Around:
    """The ranges around each of other spans on its thread, by default around each op."""

    def __init__(self, trace: Trace, ranges: Spans, inner: Spans | None = None) -> None:
        self._names, self._ranges = trace.names, ranges
        self._parent, self._order = parents_of(ranges)
        self._innermost = enclosing(ranges, self._parent, self._order, trace.ops if inner is None else inner)

    def innermost(self, op: int) -> int:
        return int(self._innermost[op])

    def phases(self) -> tuple[list[str], list[bool]]:
        """The phase of what runs in each range, and whether it is an optimizer's step; the last entries are those
        outside of all ranges.
        """
        phases, optimizes = [""] * (len(self._ranges) + 1), [False] * (len(self._ranges) + 1)
        parent, numbers = self._parent.tolist(), self._ranges.name.tolist()
        for index in self._order.tolist():
            name, around = self._names[numbers[index]], parent[index]
            phases[index] = name if is_phase(name) else phases[around]
            optimizes[index] = optimizes[around] or name.startswith(_OPTIMIZER)
        return phases, optimizes

    def names_around(self, op: int) -> list[str]:
        """From the innermost to the outermost."""
        names, at = [], self.innermost(op)
        while at != UNKNOWN:
            names.append(self._names[self._ranges.name[at]])
            at = int(self._parent[at])
        return names


def _callers_of_backward(trace: Trace, annotations: Spans) -> Callable[[Spans], Spans]:
    """Makes of spans the same as if autograd's threads were the thread that waits for them, so that the annotations
    around ``loss.backward()`` are around its ops.
    """
    ops = trace.ops
    of_backward = np.unique(ops.thread[(ops.forward_thread > 0) & (ops.sequence >= 0)])
    threads, counts = np.unique(
        annotations.thread[~np.isin(annotations.thread, of_backward)], return_counts=True
    )  # those of collectives are on autograd's own threads
    if not len(threads):
        return lambda spans: spans
    main = threads[np.argmax(counts)]
    return lambda spans: Spans(
        start=spans.start,
        stop=spans.stop,
        thread=np.where(np.isin(spans.thread, of_backward), main, spans.thread),
        name=spans.name,
    )
