"""batched_mm: a batch of products of two matrices, of any size."""

from __future__ import annotations

from typing import Any

from rooflight.operators.operator import Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.signatures import bmm, swapped, tensor
from rooflight.operators.sizes import MUL, Progression, Size, Span
from rooflight.operators.tensor_parallel import anything
from rooflight.operators.tensors import differentiable, random


def work(shape: Shape, dtype: str) -> Work:
    """[b, m, k] @ [b, k, n]; backward a product for each of them."""
    b, m, n, k = shape["b"], shape["m"], shape["n"], shape["k"]
    left, right, out = tensor(dtype, b, m, k), tensor(dtype, b, k, n), tensor(dtype, b, m, n)
    return Work(forward=(bmm(left, right),), backward=(bmm(swapped(left), out), bmm(out, swapped(right))))


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """Two batches of matrices."""
    b, m, n, k = shape["b"], shape["m"], shape["n"], shape["k"]
    left, right = (random(torch, dtype, device, *size, grad=True) for size in ((b, m, k), (b, k, n)))
    return differentiable(torch, lambda: torch.bmm(left, right), [left, right])


register(
    Operator(
        name="batched_mm",
        summary="[b, m, k] @ [b, k, n]",
        sizes={
            "b": Size(test=1, collect=Progression(1, 4, 256, MUL), smart=Span(1, 512)),
            "m": Size(test=64, collect=Progression(64, 2, 4096, MUL), smart=Span(1, 4096)),
            "n": Size(test=64, collect=Progression(64, 2, 4096, MUL), smart=Span(16, 4096, 8)),
            "k": Size(test=64, collect=Progression(64, 2, 4096, MUL), smart=Span(16, 4096, 8)),
        },
        work=work,
        prepare=prepare,
        check=anything,
        smart_share=2,
    )
)
