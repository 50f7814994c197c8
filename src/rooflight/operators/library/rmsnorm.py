"""rmsnorm: RMS norm in one call, which a GPU runs as one kernel."""

from __future__ import annotations

from typing import Any

from rooflight.operators.operator import Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.signatures import call, tensor
from rooflight.operators.sizes import HIDDEN_WIDTH, ROWS
from rooflight.operators.tensor_parallel import anything
from rooflight.operators.tensors import differentiable, random


def work(shape: Shape, dtype: str) -> Work:
    """[rows, dim] and a weight [dim], one reciprocal root a row."""
    rows, dim = shape["rows"], shape["dim"]
    x, weight, root = tensor(dtype, rows, dim), tensor(dtype, dim), tensor("float32", rows)
    return Work(
        forward=(call("aten::_fused_rms_norm", {"input": x, "weight": weight}, x, root),),
        backward=(
            call(
                "aten::_fused_rms_norm_backward",
                {"grad_out": x, "input": x, "rstd": root, "weight": weight},
                *(x, weight),
            ),
        ),
    )


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """x and its weight."""
    dim = shape["dim"]
    x, weight = (
        random(torch, dtype, device, shape["rows"], dim, grad=True),
        random(torch, dtype, device, dim, grad=True),
    )
    return differentiable(torch, lambda: torch.nn.functional.rms_norm(x, (dim,), weight), [x, weight])


register(
    Operator(
        name="rmsnorm",
        summary="RMS norm of [rows, dim] in one call",
        sizes={"rows": ROWS, "dim": HIDDEN_WIDTH},
        work=work,
        prepare=prepare,
        check=anything,
        smart_share=2,
    )
)
