"""sum_rows: rows added up, as the gradient of a bias is."""

from __future__ import annotations

from typing import Any

from rooflight.operators.operator import STEP, Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.signatures import call, tensor
from rooflight.operators.sizes import ROWS, WIDTH
from rooflight.operators.tensor_parallel import anything
from rooflight.operators.tensors import random


def work(shape: Shape, dtype: str) -> Work:
    """[rows, width] to [1, width]."""
    x, total = tensor(dtype, shape["rows"], shape["width"]), tensor(dtype, 1, shape["width"])
    return Work(forward=(call("aten::sum", {"self": x}, total, dim=(0,), keepdim=True),))


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """One tensor."""
    x = random(torch, dtype, device, shape["rows"], shape["width"])
    return Prepared(forward=lambda: torch.sum(x, 0, keepdim=True))


register(
    Operator(
        name="sum_rows",
        summary="the rows of [rows, width] added up",
        sizes={"rows": ROWS, "width": WIDTH},
        work=work,
        prepare=prepare,
        check=anything,
        directions=STEP,
    )
)
