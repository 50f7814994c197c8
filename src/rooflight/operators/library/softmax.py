"""softmax: over the keys of attention scores."""

from __future__ import annotations

from typing import Any

from rooflight.operators.operator import Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.signatures import call, map_one, tensor
from rooflight.operators.sizes import BATCH, HEADS, LENGTH, TENSOR_PARALLEL
from rooflight.operators.tensor_parallel import heads
from rooflight.operators.tensors import differentiable, random


def _size(shape: Shape) -> tuple[int, int, int, int]:
    return shape["b"], shape["h"] // shape["mp"], shape["l"], shape["l"]


def work(shape: Shape, dtype: str) -> Work:
    """[b, h / mp, l, l] along the last dimension."""
    x = tensor(dtype, *_size(shape))
    return Work(
        forward=(map_one("aten::_softmax", x, dim=-1),),
        backward=(call("aten::_softmax_backward_data", {"grad_output": x, "output": x}, x, dim=-1),),
    )


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """One tensor of scores."""
    x = random(torch, dtype, device, *_size(shape), grad=True)
    return differentiable(torch, lambda: torch.softmax(x, -1), [x])


register(
    Operator(
        name="softmax",
        summary="softmax of [b, h / mp, l, l] over the last dimension",
        sizes={
            "mp": TENSOR_PARALLEL,
            "b": BATCH,
            "h": HEADS,
            "l": LENGTH,
        },
        work=work,
        prepare=prepare,
        check=heads,
    )
)
