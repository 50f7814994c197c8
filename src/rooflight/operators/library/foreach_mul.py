"""foreach_mul: each of a list multiplied by a number."""

from __future__ import annotations

from rooflight.operators.builders.tensor_lists import list_operator

list_operator("mul", "mul_ by a number", lambda torch, each: torch._foreach_mul_(each, 1.0))
