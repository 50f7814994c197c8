"""foreach_addcdiv: quotients of two lists added to a third."""

from __future__ import annotations

from rooflight.operators.builders.tensor_lists import list_operator

list_operator(
    "addcdiv",
    "addcdiv_ of two lists",
    lambda torch, each, top, bottom: torch._foreach_addcdiv_(each, top, bottom, [0.1] * len(each)),
    "tensor1",
    "tensor2",
)
