"""res_add: the residual stream plus what a block adds to it."""

from __future__ import annotations

from typing import Any

from rooflight.operators.operator import Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.signatures import map_two, tensor
from rooflight.operators.sizes import BATCH, HIDDEN, LENGTH
from rooflight.operators.tensor_parallel import anything
from rooflight.operators.tensors import random


def work(shape: Shape, dtype: str) -> Work:
    """[l, b, dim] each way: backward, the gradients of the two branches meet in an addition."""
    x = tensor(dtype, shape["l"], shape["b"], shape["dim"])
    added = (map_two("aten::add", x, x),)
    return Work(forward=added, backward=added)


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """Two tensors, and two for the gradients."""
    x, y, dx, dy = (random(torch, dtype, device, shape["l"], shape["b"], shape["dim"]) for _ in range(4))
    return Prepared(forward=lambda: torch.add(x, y), backward=lambda _: torch.add(dx, dy))


register(
    Operator(
        name="res_add",
        summary="residual addition of [l, b, dim]",
        sizes={"b": BATCH, "l": LENGTH, "dim": HIDDEN},
        work=work,
        prepare=prepare,
        check=anything,
    )
)
