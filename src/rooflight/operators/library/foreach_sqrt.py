"""foreach_sqrt: new square roots of a list."""

from __future__ import annotations

from rooflight.operators.builders.tensor_lists import list_operator

list_operator("sqrt", "new square roots", lambda torch, each: torch._foreach_sqrt(each), fresh=True)
