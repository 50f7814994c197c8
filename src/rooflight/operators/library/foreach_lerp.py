"""foreach_lerp: each of a list moved towards another's."""

from __future__ import annotations

from rooflight.operators.builders.tensor_lists import list_operator

list_operator(
    "lerp", "lerp_ towards another list", lambda torch, each, to: torch._foreach_lerp_(each, to, 0.1), "tensors1"
)
