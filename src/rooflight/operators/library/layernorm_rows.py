"""layernorm_rows: LayerNorm of each row; `layernorm` has estimate-train-time's parameters."""

from __future__ import annotations

from typing import Any

from rooflight.operators.builders.layer_norm import layer_norm_work, prepare_layer_norm
from rooflight.operators.operator import Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.sizes import ROWS, WIDTH
from rooflight.operators.tensor_parallel import anything


def _size(shape: Shape) -> tuple[int, int]:
    return shape["rows"], shape["width"]


def work(shape: Shape, dtype: str) -> Work:
    """[rows, width]."""
    return layer_norm_work(_size(shape), dtype)


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """x, weight and bias."""
    return prepare_layer_norm(torch, _size(shape), dtype, device)


register(
    Operator(
        name="layernorm_rows",
        summary="LayerNorm of each row of [rows, width]",
        sizes={"rows": ROWS, "width": WIDTH},
        work=work,
        prepare=prepare,
        check=anything,
        smart_share=3,
    )
)
