"""Sweeps: grids and lists of shapes by number, and which shape comes next, given the rows there are."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

from rooflight.costs.operators.operator import Operator, Shape
from rooflight.costs.operators.sizes import Progression
from rooflight.records.samples import Rows

MANY = 1_000_000
"""Number of shapes beyond which the command asks first."""

Key = tuple[int, ...]


class Points(Protocol):
    """Shapes by number."""

    @property
    def size(self) -> int:
        """How many there are."""

    def __getitem__(self, index: int) -> dict[str, int]:
        """One of them."""


class Sweep(Protocol):
    """Which shapes to sample, in which order."""

    @property
    def total(self) -> int | None:
        """Shapes of the whole sweep; None where a budget ends it."""

    def next(self, rows: Rows, taken: Collection[Key] = ()) -> Shape | None:
        """The next shape that has no row and is not ``taken`` by somebody at work; None at the end."""

    def left_s(self, rows: Rows) -> float | None:
        """Seconds left of a budget, None without one."""


class PointSweep:
    """All shapes of a grid, or every ``parts``-th of them from number ``part`` on, so that parts take equally long.

    Raises ValueError for a grid of no shapes and for a part that is not among the parts.
    """

    def __init__(self, points: Points, *, parts: int = 1, part: int = 1) -> None:
        check_part(parts, part)
        if points.size < 1:
            raise ValueError("the sweep has 0 shapes: every start must be at or below its end")
        self._points = points
        self._at = iter(range(part - 1, points.size, parts))
        self._total = max(0, -(-(points.size - part + 1) // parts))  # beyond the range of ``len``

    @property
    def total(self) -> int:
        """Shapes of this part."""
        return self._total

    def next(self, rows: Rows, taken: Collection[Key] = ()) -> Shape | None:
        """The next in order; those before it were given out already or have a row."""
        for number in self._at:
            shape = self._points[number]
            key = rows.key(shape)
            if key not in rows and key not in taken:
                return shape
        return None

    def left_s(self, rows: Rows) -> float | None:  # noqa: ARG002 - the protocol's
        """No budget."""
        return None


def check_part(parts: int, part: int) -> None:
    """Raises ValueError for a part that is not among the parts."""
    if parts < 1:
        raise ValueError(f"--parts {parts}: give at least 1")
    if not 1 <= part <= parts:
        raise ValueError(f"--part {part} of --parts {parts}: parts are numbered from 1 to {parts}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Every combination of the axes' values, the last axis fastest. Shapes are made when needed."""

    operator: Operator
    axes: tuple[tuple[str, Progression], ...]
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


def full_grid(operator: Operator) -> Grid:
    """The full grid of an operator."""
    return Grid(operator=operator, axes=tuple((name, size.collect) for name, size in operator.sizes.items()))


def small_shapes(operator: Operator) -> Shapes:
    """A small shape, then one more for each size that can be doubled."""
    first = {name: size.test for name, size in operator.sizes.items()}
    larger = [{**first, name: 2 * value} for name, value in first.items() if value > 1]
    possible = [shape for shape in larger if operator.ranks or operator.refusal(operator.shape(shape)) is None]
    return Shapes(operator, (first, *possible))


def complete(operator: Operator, values: Shape | Sequence[int]) -> dict[str, int]:
    """A whole shape; of a collective with the nodes and ranks of the launch, unless they are given.

    Raises ValueError for values that do not fit the operator.
    """
    if not operator.ranks:
        return operator.shape(values)
    named = dict(values) if isinstance(values, Mapping) else dict(zip(operator.parameters, values, strict=False))
    return operator.shape({**launched(), **named})


def launched() -> dict[str, int]:
    """Nodes and ranks a node as torchrun sets them; 1 and 1 outside of it."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    here = int(os.environ.get("LOCAL_WORLD_SIZE", str(ranks)))
    return {"nodes": max(1, ranks // max(1, here)), "gpus_per_node": here}
