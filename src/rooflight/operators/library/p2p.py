"""p2p: the first rank sends, the last receives; between nodes where there are several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rooflight.operators.builders.collective import Run, group_attributes, num_ranks, rank_operator
from rooflight.operators.operator import Shape
from rooflight.operators.registry import register
from rooflight.operators.signatures import call, tensor
from rooflight.records.signature import OpSignature


def work(shape: Shape, dtype: str) -> OpSignature:
    """[elements], as the sender sees it."""
    return call("c10d::send", {"tensors": tensor(dtype, shape["elements"])}, **group_attributes(shape))


def run(dist: Any, shape: Shape, source: Any, room: Callable[[int], Any]) -> Run:  # noqa: ARG001
    """Ranks between the two look on."""
    rank, last = dist.get_rank(), num_ranks(shape) - 1
    if rank == 0:
        return lambda: dist.send(source, last)
    return (lambda: dist.recv(source, 0)) if rank == last else (lambda: None)


register(rank_operator("p2p", "[elements] sent by the first rank to the last", work, run))
