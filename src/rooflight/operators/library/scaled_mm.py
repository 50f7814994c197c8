"""scaled_mm: a product of two float8 matrices with a scale each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rooflight.operators.operator import STEP, Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.signatures import call, scalar, swapped, tensor
from rooflight.operators.sizes import PRODUCT_COLUMNS, PRODUCT_DEPTH, PRODUCT_ROWS, Span
from rooflight.operators.tensors import random

NARROW = "float8_e4m3fn"
ALIGNMENT = 16


def check(shape: Shape) -> str | None:
    """cuBLAS takes inner sizes in multiples of 16."""
    odd = [f"{name}={shape[name]} is not a multiple of {ALIGNMENT}" for name in ("n", "k") if shape[name] % ALIGNMENT]
    return odd[0] if odd else None


def work(shape: Shape, dtype: str) -> Work:
    """float8 [m, k] @ [k, n], the second transposed in memory; ``dtype`` is the result's."""
    m, n, k = shape["m"], shape["n"], shape["k"]
    scale = scalar("float32")
    inputs = {"self": tensor(NARROW, m, k), "mat2": swapped(tensor(NARROW, n, k)), "scale_a": scale, "scale_b": scale}
    return Work(forward=(call("aten::_scaled_mm", inputs, tensor(dtype, m, n)),))


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """Two float8 matrices. What device or torch cannot do shows when it first runs."""
    left = random(torch, "bfloat16", device, shape["m"], shape["k"]).to(torch.float8_e4m3fn)
    right = random(torch, "bfloat16", device, shape["n"], shape["k"]).to(torch.float8_e4m3fn).t()
    scales = {name: torch.ones((), device=device) for name in ("scale_a", "scale_b")}
    out = getattr(torch, dtype)
    return Prepared(forward=lambda: torch._scaled_mm(left, right, **scales, out_dtype=out))


register(
    Operator(
        name="scaled_mm",
        summary="float8 [m, k] @ [k, n] with a result in the precision sampled",
        sizes={"m": replace(PRODUCT_ROWS, smart=Span(16, 16_384, 16)), "n": PRODUCT_COLUMNS, "k": PRODUCT_DEPTH},
        work=work,
        prepare=prepare,
        check=check,
        directions=STEP,
    )
)
