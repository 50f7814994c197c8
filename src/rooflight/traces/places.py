"""Where in the program each op of a trace ran: its module, its phase, and which part of a step it served."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from rooflight.records.record import Direction, ModuleEntry
from rooflight.traces.nesting import Nesting, enclosing, parents_of
from rooflight.traces.trace import LOADER_FRAME, MODULE, UNKNOWN, Spans, Trace

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
