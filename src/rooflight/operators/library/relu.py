"""relu: the positive part."""

from __future__ import annotations

from rooflight.operators.builders.rows_by_width import unary_operator
from rooflight.operators.registry import register

register(
    unary_operator("relu", "relu of [rows, width]", "aten::relu", "aten::threshold_backward", lambda torch: torch.relu)
)
