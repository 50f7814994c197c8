"""foreach_div: each of a list divided by its number."""

from __future__ import annotations

from rooflight.operators.builders.tensor_lists import list_operator

list_operator("div", "div_ by a number each", lambda torch, each: torch._foreach_div_(each, [1.0] * len(each)))
