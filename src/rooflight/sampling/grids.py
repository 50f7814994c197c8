"""Shapes by number: grids, lists, and the two that every operator has, its small test shapes and its full grid."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from rooflight.operators.operator import Operator, Shape
from rooflight.operators.sizes import Progression


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
    kept = [shape for shape in larger if operator.ranks or operator.refusal(operator.shape(shape)) is None]
    return Shapes(operator, (first, *kept))


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
