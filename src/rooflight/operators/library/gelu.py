"""gelu: the activation between the MLP's projections."""

from __future__ import annotations

from typing import Any

from rooflight.operators.operator import Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.signatures import call, map_one, tensor
from rooflight.operators.sizes import BATCH, HIDDEN, LENGTH, TENSOR_PARALLEL
from rooflight.operators.tensor_parallel import hidden
from rooflight.operators.tensors import differentiable, random


def _size(shape: Shape) -> tuple[int, int, int]:
    return shape["l"], shape["b"], 4 * shape["dim"] // shape["mp"]


def work(shape: Shape, dtype: str) -> Work:
    """[l, b, 4 dim / mp] each way."""
    x = tensor(dtype, *_size(shape))
    return Work(
        forward=(map_one("aten::gelu", x, approximate="none"),),
        backward=(call("aten::gelu_backward", {"grad_output": x, "self": x}, x, approximate="none"),),
    )


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """One tensor."""
    x = random(torch, dtype, device, *_size(shape), grad=True)
    return differentiable(torch, lambda: torch.nn.functional.gelu(x), [x])


register(
    Operator(
        name="gelu",
        summary="GELU of [l, b, 4 dim / mp]",
        sizes={
            "mp": TENSOR_PARALLEL,
            "b": BATCH,
            "l": LENGTH,
            "dim": HIDDEN,
        },
        work=work,
        prepare=prepare,
        check=hidden,
    )
)
