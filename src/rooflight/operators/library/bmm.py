"""bmm: attention probabilities times values."""

from __future__ import annotations

from typing import Any

from rooflight.operators import signatures
from rooflight.operators.operator import Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.signatures import swapped, tensor
from rooflight.operators.sizes import ATTENTION_BATCH, HEADS, HIDDEN, LENGTH, TENSOR_PARALLEL
from rooflight.operators.tensor_parallel import heads
from rooflight.operators.tensors import differentiable, random


def _sizes(shape: Shape) -> tuple[int, int, int]:
    return shape["b"] * shape["h"] // shape["mp"], shape["l"], shape["dim"] // shape["h"]


def work(shape: Shape, dtype: str) -> Work:
    """[b h / mp, l, l] x [.., l, dim / h]."""
    batch, length, width = _sizes(shape)
    weights, values = tensor(dtype, batch, length, length), tensor(dtype, batch, length, width)
    return Work(
        forward=(signatures.bmm(weights, values),),
        backward=(signatures.bmm(swapped(weights), values), signatures.bmm(values, swapped(values))),
    )


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """Probabilities and values."""
    batch, length, width = _sizes(shape)
    weights, values = (random(torch, dtype, device, batch, length, size, grad=True) for size in (length, width))
    return differentiable(torch, lambda: torch.bmm(weights, values), [weights, values])


register(
    Operator(
        name="bmm",
        summary="attention output: [b h / mp, l, l] x [.., l, dim / h]",
        sizes={
            "mp": TENSOR_PARALLEL,
            "b": ATTENTION_BATCH,
            "h": HEADS,
            "l": LENGTH,
            "dim": HIDDEN,
        },
        work=work,
        prepare=prepare,
        check=heads,
    )
)
