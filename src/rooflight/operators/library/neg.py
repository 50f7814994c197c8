"""neg: the sign turned, as rotary embeddings do to half a head."""

from __future__ import annotations

from typing import Any

from rooflight.operators.operator import Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.signatures import map_one, tensor
from rooflight.operators.sizes import ROWS, WIDTH
from rooflight.operators.tensor_parallel import anything
from rooflight.operators.tensors import differentiable, random


def work(shape: Shape, dtype: str) -> Work:
    """[rows, width] each way."""
    turned = (map_one("aten::neg", tensor(dtype, shape["rows"], shape["width"])),)
    return Work(forward=turned, backward=turned)


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """One tensor."""
    x = random(torch, dtype, device, shape["rows"], shape["width"], grad=True)
    return differentiable(torch, lambda: torch.neg(x), [x])


register(
    Operator(
        name="neg",
        summary="-x of [rows, width]",
        sizes={"rows": ROWS, "width": WIDTH},
        work=work,
        prepare=prepare,
        check=anything,
    )
)
