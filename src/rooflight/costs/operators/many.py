"""Operators at many shapes at once: which shapes an operator takes, and something found out about the ops of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rooflight.costs.lanes import Rows, over_lanes
from rooflight.costs.operators.operator import Operator, Shape
from rooflight.records.signature import OpSignature

Result = TypeVar("Result")
Columns = Mapping[str, NDArray[np.int64]]
"""The values [shapes] of each parameter."""


def accepted(operator: Operator, shapes: Columns) -> Rows:
    """Numbers of the whole shapes that an operator takes, in order."""
    taken = [rows for rows, refusal in over_lanes(operator.refusal, shapes) if refusal is None]
    return np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *taken]))


def over_shapes(
    operator: Operator,
    shapes: Columns,
    dtype: str,
    direction: str,
    run: Callable[[Shape, Sequence[OpSignature]], Result],
) -> Iterator[tuple[Rows, Result]]:
    """What ``run`` finds out about a shape and its ops in one direction, for whole shapes that the operator takes: the
    numbers of shapes, and the result for all of these (``costs.lanes``).
    """
    yield from over_lanes(lambda shape: run(shape, operator.ops(shape, dtype, direction)), shapes)
