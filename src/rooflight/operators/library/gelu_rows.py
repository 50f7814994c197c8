"""gelu_rows: GELU of any size; `gelu` has estimate-train-time's parameters."""

from __future__ import annotations

from typing import Any

from rooflight.operators.operator import Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.signatures import call, map_one, tensor
from rooflight.operators.sizes import FLAG, ROWS, WIDTH
from rooflight.operators.tensor_parallel import anything
from rooflight.operators.tensors import differentiable, random


def _approximation(shape: Shape) -> str:
    return "tanh" if shape["tanh"] else "none"


def work(shape: Shape, dtype: str) -> Work:
    """[rows, width] each way."""
    x = tensor(dtype, shape["rows"], shape["width"])
    how = _approximation(shape)
    return Work(
        forward=(map_one("aten::gelu", x, approximate=how),),
        backward=(call("aten::gelu_backward", {"grad_output": x, "self": x}, x, approximate=how),),
    )


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """One tensor."""
    x = random(torch, dtype, device, shape["rows"], shape["width"], grad=True)
    how = _approximation(shape)
    return differentiable(torch, lambda: torch.nn.functional.gelu(x, approximate=how), [x])


register(
    Operator(
        name="gelu_rows",
        summary="GELU of [rows, width]; tanh 1 for the approximation that GPT-2 has",
        sizes={"rows": ROWS, "width": WIDTH, "tanh": FLAG},
        work=work,
        prepare=prepare,
        check=anything,
        smart_share=3,
    )
)
