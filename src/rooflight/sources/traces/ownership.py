"""Which op, module and phase each piece of a device's work belongs to, and at which ops a trace is accounted."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rooflight.records.record import Direction, ModuleEntry
from rooflight.records.session import Flags, Int32
from rooflight.sources.traces.file.trace import (
    LOADER_FRAME,
    MODULE,
    UNKNOWN,
    Nesting,
    Spans,
    Trace,
    enclosing,
    parents_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """``call[k]`` is the call that launched work k, ``launched_by[k]`` the innermost op that did, ``accounted[k]`` the
    op at which it is accounted; ``UNKNOWN`` where there is none. ``before_trace[k]``: it was launched before the trace
    began. ``level[i]`` is the outermost op around op i, itself included, that a recorder would see.
    """

    trace: Trace
    nesting: Nesting
    level: Int32
    call: Int32
    launched_by: Int32
    accounted: Int32
    before_trace: Flags

    def without(self, chosen: Flags) -> Ownership:
        """The same with the chosen work belonging to no op."""
        none = np.int32(UNKNOWN)
        launched_by, accounted = np.where(chosen, none, self.launched_by), np.where(chosen, none, self.accounted)
        return replace(self, launched_by=launched_by, accounted=accounted)

    @property
    def host_ops(self) -> Int32:
        """Every op at which the host's ops are accounted, in the order in which they began."""
        own = np.flatnonzero(self.level == np.arange(len(self.level)))
        return own[np.argsort(self.trace.ops.start[own], kind="stable")].astype(np.int32)

    @property
    def device_ops(self) -> Int32:
        """Every op at which work of a device is accounted."""
        return np.unique(self.accounted[self.accounted != UNKNOWN])

    def work_of(self, ops: Flags, work: Flags | None = None) -> Mapping[int, Mapping[tuple[str, int], None]]:
        """By op the names and the kinds of its work, each once: of these ops, and of all that have such ``work``."""
        has_op = self.accounted != UNKNOWN
        chosen = np.zeros(len(has_op), dtype=np.bool_) if work is None else has_op & work
        chosen[has_op] |= ops[self.accounted[has_op]]
        names, found = self.trace.names, defaultdict[int, dict[tuple[str, int], None]](dict)
        columns = (self.accounted, self.trace.work.name, self.trace.work.kind)
        for op, name, kind in zip(*(column[chosen].tolist() for column in columns), strict=True):
            found[op][names[name], kind] = None
        return found


def owners(trace: Trace, nesting: Nesting, seen: Flags) -> Ownership:
    """Join work to ops by the calls that launched it; ``seen``: the ops that a recorder would see.

    Work is accounted at the outermost such op around its launch, or, if none is, at the innermost op, so that a custom
    op's own kernels are listed under its name.
    """
    call, level = calls_of(trace), _levels(nesting, seen)
    known = call != UNKNOWN
    launched_by = np.full(len(trace.work), UNKNOWN, dtype=np.int32)
    launched_by[known] = nesting.call_op[call[known]]
    accounted = launched_by.copy()
    has_op = launched_by != UNKNOWN
    seen_around = level[launched_by[has_op]]
    accounted[has_op] = np.where(seen_around != UNKNOWN, seen_around, launched_by[has_op])
    return Ownership(
        trace=trace,
        nesting=nesting,
        level=level,
        call=call,
        launched_by=launched_by,
        accounted=accounted,
        before_trace=~known & _launched_before(trace),
    )


def _launched_before(trace: Trace) -> Flags:
    """Which work without a call in the trace can be of a launch before it: it ran, or is numbered, before all calls."""
    work, calls = trace.work, trace.calls
    begun = min(calls.start.min() if len(calls) else np.inf, trace.ops.start.min() if len(trace.ops) else np.inf)
    before = work.start < begun
    correlated = calls.correlation[calls.correlation != UNKNOWN]
    return before | (work.correlation < correlated.min()) if len(correlated) else before


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


def _levels(nesting: Nesting, seen: Flags) -> Int32:
    parent, is_seen = nesting.parent.tolist(), seen.tolist()
    found = [UNKNOWN] * len(parent)
    for op in nesting.order.tolist():
        around = parent[op]
        if around != UNKNOWN and found[around] != UNKNOWN:
            found[op] = found[around]
        elif is_seen[op]:
            found[op] = op
    return np.array(found, dtype=np.int32)


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
class Scope:
    """The module, phase and direction of one op."""

    module: ModuleEntry
    phase: str
    direction: Direction


class Places:
    """Finds the place of each op of a trace. Modules are known where Python frames were recorded (``with_stack=True``
    or ``with_modules=True``): by class and number, in the order in which they were first called.
    """

    def __init__(self, trace: Trace, nesting: Nesting) -> None:
        self._ops, self._parent = trace.ops, nesting.parent
        is_module = trace.named(trace.ranges, is_module_call)
        annotations = trace.ranges.where(~is_module)
        called_by = _callers_of_backward(trace, annotations)
        self._modules = Around(trace, trace.ranges.where(is_module), trace.ops)
        self._annotations = Around(trace, annotations, trace.ops)
        self._around_backward = Around(trace, annotations, called_by(trace.ops))
        self._of_calls = Around(trace, annotations, called_by(trace.calls))
        self._forward_of: dict[int, int] | None = None
        self._entries: dict[int, ModuleEntry] = {UNKNOWN: OUTSIDE}
        self._phases, self._optimizes = self._annotations.phases()
        self._backward: dict[int, int] = {UNKNOWN: UNKNOWN}

    def place(self, op: int) -> Scope:
        """The place of one op."""
        forward, (phase, direction) = self._forward(op), self.phase(op)
        return Scope(module=self._module(op if forward == UNKNOWN else forward), phase=phase, direction=direction)

    def phase(self, op: int) -> tuple[str, Direction]:
        """The phase of one op, and its direction."""
        around = self._annotations.innermost(op)
        direction = Direction.OPTIMIZER if self._optimizes[around] else Direction.FORWARD
        if self._node(op) != UNKNOWN:
            direction = Direction.BACKWARD
        return self._phases[around] or self._phases[self._around_backward.innermost(op)], direction

    def annotations(self, op: int) -> list[str]:
        """The annotations around one op, the innermost first."""
        return self._annotations.names_around(op)

    def phase_of_call(self, call: int) -> str:
        """The phase in which a call of the device's runtime ran."""
        return self._phases[self._of_calls.innermost(call)]

    def _node(self, op: int) -> int:
        """Autograd's node around an op, which runs its backward."""
        passed, around = [], op
        while around not in self._backward and self._ops.forward_thread[around] <= 0:
            passed.append(around)
            around = int(self._parent[around])
        around = self._backward.setdefault(around, around)
        self._backward.update(dict.fromkeys(passed, around))
        return around

    def _forward(self, op: int) -> int:
        ops, around = self._ops, self._node(op)
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


def is_module_call(name: str) -> bool:
    """Whether a range is a call of a module, not an annotation."""
    return name.startswith(MODULE)


def is_phase(name: str) -> bool:
    """Whether an annotation is the user's."""
    return not name.startswith(_NOT_PHASES) and LOADER_FRAME not in name


def phase_of(names: Iterable[str]) -> str:
    """The innermost phase among annotations, the innermost first; empty if none is one."""
    return next((name for name in names if is_phase(name)), "")


class Around:
    """The ranges around each of other spans on its thread."""

    def __init__(self, trace: Trace, ranges: Spans, inner: Spans) -> None:
        self._names, self._ranges = trace.names, ranges
        self._parent, self._order = parents_of(ranges)
        self._innermost = enclosing(ranges, self._parent, self._order, inner)

    def innermost(self, span: int) -> int:
        """The place of the innermost range around a span, ``UNKNOWN`` where there is none."""
        return int(self._innermost[span])

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

    def names_around(self, span: int) -> list[str]:
        """The names of the ranges around a span, the innermost first."""
        names, at = [], self.innermost(span)
        while at != UNKNOWN:
            names.append(self._names[self._ranges.name[at]])
            at = int(self._parent[at])
        return names


def _callers_of_backward(trace: Trace, annotations: Spans) -> Callable[[Spans], Spans]:
    """As if autograd's threads were the one that waits, so that annotations around ``backward()`` hold its ops."""
    ops = trace.ops
    of_backward = np.unique(ops.thread[ops.forward_thread > 0])
    threads, counts = np.unique(
        annotations.thread[~np.isin(annotations.thread, of_backward)], return_counts=True
    )  # those of collectives are on autograd's own threads
    if not len(threads):
        return lambda spans: spans
    main = threads[np.argmax(counts)]
    return lambda spans: replace(spans, thread=np.where(np.isin(spans.thread, of_backward), main, spans.thread))
