"""gelu_rows: GELU of any size; `gelu` has the page's parameters."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from rooflight.operators.operator import Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.signatures import call, map_one, tensor
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
        parameters=("rows", "width", "tanh"),
        family="pointwise",
        work=work,
        prepare=prepare,
        check=anything,
        defaults=MappingProxyType({"tanh": 0}),
        flags=("tanh",),
    )
)
