"""linear: a linear layer of any size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rooflight.operators.builders.linear_layer import Layer, linear_work, prepare_linear
from rooflight.operators.operator import Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.sizes import FLAG, MUL, PRODUCT_COLUMNS, PRODUCT_DEPTH, ROWS, Progression, Size
from rooflight.operators.tensor_parallel import anything


def _layer(shape: Shape) -> Layer:
    return Layer(shape["rows"], shape["inputs"], shape["outputs"])


def work(shape: Shape, dtype: str) -> Work:
    """[rows, inputs] @ [outputs, inputs]^T."""
    return linear_work(_layer(shape), dtype, bias=shape["bias"] == 1)


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """x, weight and perhaps a bias."""
    return prepare_linear(torch, _layer(shape), dtype, device, bias=shape["bias"] == 1)


register(
    Operator(
        name="linear",
        summary="linear layer: [rows, inputs] @ [outputs, inputs]^T, plus a bias unless bias is 0",
        sizes={
            "rows": ROWS,
            "inputs": Size(test=64, collect=Progression(512, 2, 16_384, MUL), smart=PRODUCT_DEPTH.smart),
            "outputs": Size(test=64, collect=Progression(512, 2, 16_384, MUL), smart=PRODUCT_COLUMNS.smart),
            "bias": replace(FLAG, test=1, default=1),
        },
        work=work,
        prepare=prepare,
        check=anything,
        smart_share=8,
    )
)
