"""copy: memory to memory on one device."""

from __future__ import annotations

from typing import Any

from rooflight.operators.operator import STEP, Operator, Prepared, Shape, Work
from rooflight.operators.registry import register
from rooflight.operators.signatures import in_place, tensor
from rooflight.operators.sizes import ELEMENTS
from rooflight.operators.tensor_parallel import anything
from rooflight.operators.tensors import random


def work(shape: Shape, dtype: str) -> Work:
    """[elements] read once and written once."""
    x = tensor(dtype, shape["elements"])
    return Work(forward=(in_place("aten::copy_", x, {"src": x}),))


def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:
    """From and to."""
    source, target = (random(torch, dtype, device, shape["elements"]) for _ in range(2))
    return Prepared(forward=lambda: target.copy_(source))


register(
    Operator(
        name="copy",
        summary="[elements] copied within a device's memory",
        sizes={"elements": ELEMENTS},
        work=work,
        prepare=prepare,
        check=anything,
        directions=STEP,
        smart_share=2,
    )
)
