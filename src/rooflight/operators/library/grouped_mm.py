"""grouped_mm: the experts of a mixture in one kernel, each with as many rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rooflight.operators.operator import Operator, Prepared, RefusedError, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.signatures import call, swapped, tensor
from rooflight.operators.sizes import MUL, PRODUCT_COLUMNS, PRODUCT_DEPTH, Progression, Size, Span
from rooflight.operators.tensor_parallel import divides
from rooflight.operators.tensors import differentiable, random

ALIGNMENT = 8
"""Rows of 16-bit numbers must begin at multiples of 16 bytes."""


def check(shape: Shape) -> str | None:
    """Each group has as many rows; operands are laid out as the kernel needs."""
    odd = [f"{name}={shape[name]} is not a multiple of {ALIGNMENT}" for name in ("n", "k") if shape[name] % ALIGNMENT]
    return odd[0] if odd else divides(shape, ("rows", "groups"))


def work(shape: Shape, dtype: str) -> Work:
    """a [rows, k] @ b [groups, k, n]; backward a product for each of them."""
    rows, k, n, groups = shape["rows"], shape["k"], shape["n"], shape["groups"]
    a, b, out, ends = (
        tensor(dtype, rows, k),
        tensor(dtype, groups, k, n),
        tensor(dtype, rows, n),
        tensor("int32", groups),
    )
    product = "aten::_grouped_mm"
    return Work(
        forward=(call(product, {"self": a, "mat2": b, "offs": ends}, out),),
        backward=(
            call(product, {"self": swapped(a), "mat2": out, "offs": ends}, b),
            call(product, {"self": out, "mat2": swapped(b), "offs": ends}, a),
        ),
    )


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """Rows, experts, and where each expert's rows end. Raises RefusedError where torch has no such op."""
    grouped = getattr(torch.nn.functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    if grouped is None:
        raise RefusedError("this torch has no grouped_mm")
    rows, groups = shape["rows"], shape["groups"]
    a = random(torch, dtype, device, rows, shape["k"], grad=True)
    b = random(torch, dtype, device, groups, shape["k"], shape["n"], grad=True)
    ends = torch.arange(rows // groups, rows + 1, rows // groups, dtype=torch.int32, device=device)
    return differentiable(torch, lambda: grouped(a, b, offs=ends), [a, b])


register(
    Operator(
        name="grouped_mm",
        summary="a [rows, k] @ b [groups, k, n], rows dealt evenly to groups",
        sizes={
            "rows": Size(test=64, collect=Progression(1024, 2, 16_384, MUL), smart=Span(64, 32_768, 64)),
            "n": replace(PRODUCT_COLUMNS, collect=Progression(1024, 2, 8192, MUL)),
            "k": replace(PRODUCT_DEPTH, collect=Progression(1024, 2, 8192, MUL)),
            "groups": Size(test=1, collect=Progression(4, 2, 64, MUL), smart=Span(choices=(4, 8, 16, 64))),
        },
        work=work,
        prepare=prepare,
        check=check,
    )
)
