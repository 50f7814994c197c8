"""layernorm: LayerNorm over the hidden size."""

from __future__ import annotations

from typing import Any

from rooflight.sampling.operator import Operator, Prepared, Shape, Work
from rooflight.sampling.registry import register
from rooflight.sampling.shards import anything
from rooflight.sampling.signatures import call, tensor
from rooflight.sampling.tensors import differentiable, random


def work(shape: Shape, dtype: str) -> Work:
    """[l, b, dim] with weight, bias, and a mean and 1/std a row."""
    length, b, dim = shape["l"], shape["b"], shape["dim"]
    statistics = "float32" if dtype in ("float16", "bfloat16") else dtype
    x, vector, row = tensor(dtype, length, b, dim), tensor(dtype, dim), tensor(statistics, length, b, 1)
    return Work(
        forward=(call("aten::native_layer_norm", {"input": x, "weight": vector, "bias": vector}, x, row, row),),
        backward=(
            call(
                "aten::native_layer_norm_backward",
                {"grad_out": x, "input": x, "mean": row, "rstd": row, "weight": vector, "bias": vector},
                *(x, vector, vector),
                output_mask=(True, True, True),
            ),
        ),
    )


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """x, weight and bias."""
    dim = shape["dim"]
    x = random(torch, dtype, device, shape["l"], shape["b"], dim, grad=True)
    weight, bias = (random(torch, dtype, device, dim, grad=True) for _ in range(2))
    return differentiable(torch, lambda: torch.nn.functional.layer_norm(x, (dim,), weight, bias), [x, weight, bias])


register(
    Operator(
        name="layernorm",
        summary="LayerNorm of [l, b, dim]",
        parameters=("b", "l", "dim"),
        family="norm",
        work=work,
        prepare=prepare,
        check=anything,
    )
)
