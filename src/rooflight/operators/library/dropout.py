"""dropout: a tenth of the numbers set to zero, the others scaled, with its gradient."""

from __future__ import annotations

from typing import Any

from rooflight.operators.operator import Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.signatures import call, tensor
from rooflight.operators.sizes import ROWS, WIDTH
from rooflight.operators.tensor_parallel import anything
from rooflight.operators.tensors import differentiable, random


def work(shape: Shape, dtype: str) -> Work:
    """The numbers and the mask, then the gradient times the mask."""
    x, mask = tensor(dtype, shape["rows"], shape["width"]), tensor("bool", shape["rows"], shape["width"])
    return Work(
        forward=(call("aten::native_dropout", {"input": x}, x, mask, train=True),),
        backward=(call("aten::native_dropout_backward", {"grad_output": x, "mask": mask}, x),),
    )


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """As torch.nn.functional.dropout runs it."""
    x = random(torch, dtype, device, shape["rows"], shape["width"], grad=True)
    return differentiable(torch, lambda: torch.dropout(x, 0.1, True), [x])


register(
    Operator(
        name="dropout",
        summary="dropout of a tenth of [rows, width]",
        sizes={"rows": ROWS, "width": WIDTH},
        work=work,
        prepare=prepare,
        check=anything,
        smart_share=2,
    )
)
