"""gemm: a product of two matrices, either of which may lie transposed in memory."""

from __future__ import annotations

from typing import Any

from rooflight.operators.operator import STEP, Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.signatures import mm, swapped, tensor
from rooflight.operators.sizes import FLAG, PRODUCT_COLUMNS, PRODUCT_DEPTH, PRODUCT_ROWS
from rooflight.operators.tensor_parallel import anything
from rooflight.operators.tensors import random
from rooflight.records.tensor import TensorSpec


def _operand(dtype: str, rows: int, columns: int, *, transposed: int) -> TensorSpec:
    return swapped(tensor(dtype, columns, rows)) if transposed else tensor(dtype, rows, columns)


def work(shape: Shape, dtype: str) -> Work:
    """[m, k] @ [k, n]."""
    m, n, k = shape["m"], shape["n"], shape["k"]
    left = _operand(dtype, m, k, transposed=shape["transpose_a"])
    return Work(forward=(mm(left, _operand(dtype, k, n, transposed=shape["transpose_b"])),))


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """Two matrices and room for the result."""
    m, n, k = shape["m"], shape["n"], shape["k"]
    left = random(torch, dtype, device, k, m).t() if shape["transpose_a"] else random(torch, dtype, device, m, k)
    right = random(torch, dtype, device, n, k).t() if shape["transpose_b"] else random(torch, dtype, device, k, n)
    return Prepared(forward=lambda: torch.mm(left, right))


register(
    Operator(
        name="gemm",
        summary="[m, k] @ [k, n]; transpose_a or transpose_b 1 where that operand lies transposed in memory",
        sizes={
            "m": PRODUCT_ROWS,
            "n": PRODUCT_COLUMNS,
            "k": PRODUCT_DEPTH,
            "transpose_a": FLAG,
            "transpose_b": FLAG,
        },
        work=work,
        prepare=prepare,
        check=anything,
        directions=STEP,
        smart_share=16,
    )
)
