"""Grids of shapes: the page's axes, and the whole numbers a size may take in a space-filling design."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, prod

from rooflight.operators.operator import Operator, Shape

MUL, ADD = "mul", "add"


@dataclass(frozen=True, slots=True)
class Axis:
    """Values of one parameter from ``start`` to ``end``, ``end`` included, each ``step`` times or plus the last.

    Raises ValueError for steps that lead nowhere.
    """

    start: int
    step: int
    end: int
    operator: str

    def __post_init__(self) -> None:
        if self.operator not in (MUL, ADD):
            raise ValueError(f'unknown sweep operator "{self.operator}": use mul or add')
        if self.step < 0:
            raise ValueError(f"a step of {self.step} is negative: sweep upwards from the smallest value")
        stuck = self.step == 0 if self.operator == ADD else self.step < 2 or self.start < 1
        if stuck and self.end > self.start:
            raise ValueError(f"{self.operator} {self.step} never leads from {self.start} to {self.end}")

    def __len__(self) -> int:
        if self.end < self.start:
            return 0
        if self.end == self.start:
            return 1
        if self.operator == ADD:
            return (self.end - self.start) // self.step + 1
        count, value = 0, self.start
        while value <= self.end:
            count, value = count + 1, value * self.step
        return count

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.start + index * self.step if self.operator == ADD else self.start * self.step**index

    def __iter__(self) -> Iterator[int]:
        return (self[index] for index in range(len(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Every combination of the axes' values, the last axis fastest. Shapes are made when asked for."""

    operator: Operator
    axes: tuple[tuple[str, Axis], ...]
    fixed: tuple[tuple[str, int], ...] = ()

    @property
    def size(self) -> int:
        """How many combinations there are; a number too large for ``len`` is still a number."""
        return prod(len(axis) for _, axis in self.axes)

    def __getitem__(self, index: int) -> dict[str, int]:
        values = dict(self.fixed)
        for name, axis in reversed(self.axes):
            index, place = divmod(index, len(axis))
            values[name] = axis[place]
        if index:
            raise IndexError("beyond the grid's last shape")
        return complete(self.operator, values)


@dataclass(frozen=True, slots=True)
class Shapes:
    """Shapes written down one by one."""

    operator: Operator
    values: tuple[Shape | Sequence[int], ...]

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.values)

    def __getitem__(self, index: int) -> dict[str, int]:
        return complete(self.operator, self.values[index])


def complete(operator: Operator, values: Shape | Sequence[int]) -> dict[str, int]:
    """A whole shape; of a collective with the topology of the launch, unless it is given.

    Raises ValueError for values that do not fit the operator.
    """
    if not operator.ranks:
        return operator.shape(values)
    named = dict(values) if isinstance(values, Mapping) else dict(zip(operator.parameters, values, strict=False))
    return operator.shape({**launched(), **named})


def launched() -> dict[str, int]:
    """Nodes and ranks a node as torchrun tells them; 1 and 1 outside of it."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    here = int(os.environ.get("LOCAL_WORLD_SIZE", str(ranks)))
    return {"nodes": max(1, ranks // max(1, here)), "gpus_per_node": here}


@dataclass(frozen=True, slots=True)
class Span:
    """Sizes from ``low`` to ``high``, spread by their logarithm, multiples of ``multiple``; or one of ``choices``."""

    low: int = 0
    high: int = 0
    multiple: int = 1
    choices: tuple[int, ...] = ()

    def at(self, fraction: float) -> int:
        """The size that lies at ``fraction`` of the span, from 0 to just below 1."""
        if self.choices:
            return self.choices[int(fraction * len(self.choices))]
        size = exp(log(self.low) + fraction * log(self.high / self.low))
        return max(self.low, round(size / self.multiple) * self.multiple)

    def place(self, value: int) -> float:
        """Where a size lies, from 0 to 1: the inverse of ``at``, choices at the middle of their share."""
        if self.choices:
            return (self.choices.index(value) + 0.5) / len(self.choices) if value in self.choices else 0.5
        return log(max(value, 1) / self.low) / log(self.high / self.low) if self.high > self.low else 0.5
