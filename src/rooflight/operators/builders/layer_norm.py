"""LayerNorm over the last dimension, as `layernorm` and `layernorm_rows` run it."""

from __future__ import annotations

from typing import Any

from rooflight.operators.operator import Prepared, Work
from rooflight.operators.signatures import call, tensor
from rooflight.operators.tensors import differentiable, random


def layer_norm_work(size: tuple[int, ...], dtype: str) -> Work:
    """x with weight, bias, and a mean and 1/std a row."""
    *outer, dim = size
    statistics = "float32" if dtype in ("float16", "bfloat16") else dtype
    x, vector, row = tensor(dtype, *outer, dim), tensor(dtype, dim), tensor(statistics, *outer, 1)
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


def prepare_layer_norm(torch: Any, size: tuple[int, ...], dtype: str, device: str) -> Prepared:
    """x, weight and bias."""
    dim = size[-1]
    x = random(torch, dtype, device, *size, grad=True)
    weight, bias = (random(torch, dtype, device, dim, grad=True) for _ in range(2))
    return differentiable(torch, lambda: torch.nn.functional.layer_norm(x, (dim,), weight, bias), [x, weight, bias])
