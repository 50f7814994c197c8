"""layernorm: LayerNorm over the hidden size."""

from __future__ import annotations

from typing import Any

from rooflight.operators.builders.layer_norm import layer_norm_work, prepare_layer_norm
from rooflight.operators.operator import Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.sizes import BATCH, HIDDEN, LENGTH
from rooflight.operators.tensor_parallel import anything


def _size(shape: Shape) -> tuple[int, int, int]:
    return shape["l"], shape["b"], shape["dim"]


def work(shape: Shape, dtype: str) -> Work:
    """[l, b, dim]."""
    return layer_norm_work(_size(shape), dtype)


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """x, weight and bias."""
    return prepare_layer_norm(torch, _size(shape), dtype, device)


register(
    Operator(
        name="layernorm",
        summary="LayerNorm of [l, b, dim]",
        sizes={"b": BATCH, "l": LENGTH, "dim": HIDDEN},
        work=work,
        prepare=prepare,
        check=anything,
    )
)
