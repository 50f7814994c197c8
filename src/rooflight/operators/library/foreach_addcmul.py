"""foreach_addcmul: products of two lists added to a third."""

from __future__ import annotations

from rooflight.operators.builders.tensor_lists import list_operator

list_operator(
    "addcmul",
    "addcmul_ of two lists",
    lambda torch, each, left, right: torch._foreach_addcmul_(each, left, right, 0.1),
    "tensor1",
    "tensor2",
)
