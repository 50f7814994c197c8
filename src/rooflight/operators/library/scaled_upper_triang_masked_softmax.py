"""ScaledUpperTriangMaskedSoftmax: Megatron's fused causal softmax."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rooflight.operators.builders.causal_softmax import BACKWARD, FORWARD, triangular_softmax
from rooflight.operators.operator import Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.signatures import call, tensor
from rooflight.operators.sizes import ADD, BATCH, HEADS, LENGTH, MUL, TENSOR_PARALLEL, Progression
from rooflight.operators.tensor_parallel import heads
from rooflight.operators.tensors import differentiable, random


def _size(shape: Shape) -> tuple[int, int, int]:
    return shape["b"] * shape["h"] // shape["mp"], shape["l"], shape["l"]


def work(shape: Shape, dtype: str) -> Work:
    """[b h / mp, l, l]: the keys after a query are not read, and written as zeros."""
    x = tensor(dtype, *_size(shape))
    return Work(
        forward=(call(FORWARD, {"x": x}, x),),
        backward=(call(BACKWARD, {"grad": x, "output": x}, x),),
    )


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """One tensor of scores."""
    x = random(torch, dtype, device, *_size(shape), grad=True)
    softmax = triangular_softmax(torch)
    return differentiable(torch, lambda: softmax(x), [x])


register(
    Operator(
        name="ScaledUpperTriangMaskedSoftmax",
        summary="fused causal softmax of [b h / mp, l, l]; Megatron's kernel where installed",
        sizes={
            "mp": replace(TENSOR_PARALLEL, collect=Progression(1, 2, 1, MUL)),
            "b": BATCH,
            "h": replace(HEADS, collect=Progression(2, 2, 64, ADD)),
            "l": replace(LENGTH, collect=Progression(1024, 64, 2048, ADD)),
        },
        work=work,
        prepare=prepare,
        check=heads,
    )
)
