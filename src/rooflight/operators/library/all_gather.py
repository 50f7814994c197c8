"""all_gather: every rank ends with the parts of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rooflight.operators.builders.collective import Run, collective, num_ranks, rank_operator
from rooflight.operators.operator import Shape
from rooflight.operators.registry import register
from rooflight.records.signature import OpSignature

DESCRIBE = collective(
    "c10d::_allgather_base_",
    lambda source, target: {"output_tensor": target, "input_tensor": source},
    lambda _, target: (target,),
)


def work(shape: Shape, dtype: str) -> OpSignature:
    """[elements] from each rank to [ranks elements] on all."""
    return DESCRIBE(shape, dtype, shape["elements"] * num_ranks(shape))


def run(dist: Any, shape: Shape, source: Any, room: Callable[[int], Any]) -> Run:
    """One flat result."""
    target = room(shape["elements"] * num_ranks(shape))
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return lambda: gather(target, source)


register(rank_operator("all_gather", "[elements] of each rank gathered on all", work, run))
