"""cat: tensors side by side in a new one."""

from __future__ import annotations

from typing import Any

from rooflight.operators.operator import STEP, Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.signatures import call, tensor
from rooflight.operators.sizes import ADD, ROWS, WIDTH, Progression, Size, Span
from rooflight.operators.tensor_parallel import at_most
from rooflight.operators.tensors import random


def work(shape: Shape, dtype: str) -> Work:
    """Parts [rows, width] along the width. One way: a gradient is only looked at in parts."""
    rows, width, parts = shape["rows"], shape["width"], shape["parts"]
    part, whole = tensor(dtype, rows, width), tensor(dtype, rows, parts * width)
    return Work(forward=(call("aten::cat", {"tensors": [part] * parts}, whole, dim=-1),))


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """The parts."""
    parts = [random(torch, dtype, device, shape["rows"], shape["width"]) for _ in range(shape["parts"])]
    return Prepared(forward=lambda: torch.cat(parts, dim=-1))


register(
    Operator(
        name="cat",
        summary="`parts` tensors [rows, width] put side by side",
        sizes={
            "rows": ROWS,
            "width": WIDTH,
            "parts": Size(test=2, collect=Progression(2, 1, 3, ADD), smart=Span(choices=(2, 3)), default=2),
        },
        work=work,
        prepare=prepare,
        check=at_most(parts=1024),
        directions=STEP,
    )
)
