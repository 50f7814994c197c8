"""foreach_add: a number added to each of a list."""

from __future__ import annotations

from rooflight.operators.builders.tensor_lists import list_operator

list_operator("add", "add_ a number", lambda torch, each: torch._foreach_add_(each, 1e-3))
