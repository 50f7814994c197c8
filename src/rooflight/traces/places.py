"""Where in the program each op of a trace ran: its module, its phase, and which part of a step it served."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from rooflight.records.record import Direction, ModuleEntry
from rooflight.traces.nesting import Nesting, enclosing, parents_of
from rooflight.traces.trace import MODULE, UNKNOWN, Spans, Trace

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
        self._modules = _Around(trace, _subset(trace.ranges, is_module))
        self._annotations = _Around(trace, _subset(trace.ranges, ~is_module))
        self._forward_of: dict[int, int] | None = None
        self._entries: dict[int, ModuleEntry] = {UNKNOWN: OUTSIDE}
        self._phases, self._optimizes = self._annotations.phases()
        self._backward: dict[int, int] = {UNKNOWN: UNKNOWN}

    def place(self, op: int) -> Place:
        """The place of one op."""
        around = self._annotations.innermost(op)
        forward = self._forward(op)
        module = self._module(op if forward == UNKNOWN else forward)
        if forward != UNKNOWN:
            direction = Direction.BACKWARD
        elif self._optimizes[around]:
            direction = Direction.OPTIMIZER
        else:
            direction = Direction.FORWARD
        return Place(module=module, phase=self._phases[around], direction=direction)

    def annotations(self, op: int) -> list[str]:
        """The annotations around one op, the innermost first."""
        return self._annotations.names_around(op)

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


def phase_of(names: Iterable[str]) -> str:
    """The innermost phase among annotations, the innermost first; empty if none is one."""
    return next((name for name in names if not name.startswith(_NOT_PHASES)), "")


class _Around:
    """The ranges around each op on its thread."""

    def __init__(self, trace: Trace, ranges: Spans) -> None:
        self._names, self._ranges = trace.names, ranges
        self._parent, self._order = parents_of(ranges)
        self._innermost = enclosing(ranges, self._parent, self._order, trace.ops)

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
            phases[index] = phases[around] if name.startswith(_NOT_PHASES) else name
            optimizes[index] = optimizes[around] or name.startswith(_OPTIMIZER)
        return phases, optimizes

    def names_around(self, op: int) -> list[str]:
        """From the innermost to the outermost."""
        names, at = [], self.innermost(op)
        while at != UNKNOWN:
            names.append(self._names[self._ranges.name[at]])
            at = int(self._parent[at])
        return names


def _subset(spans: Spans, chosen: np.ndarray) -> Spans:
    return Spans(
        start=spans.start[chosen], stop=spans.stop[chosen], thread=spans.thread[chosen], name=spans.name[chosen]
    )
