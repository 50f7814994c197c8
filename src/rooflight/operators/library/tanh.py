"""tanh: the hyperbolic tangent."""

from __future__ import annotations

from rooflight.operators.builders.rows_by_width import unary_operator
from rooflight.operators.registry import register

register(
    unary_operator(
        "tanh", "tanh of [rows, width]", "aten::tanh", "aten::tanh_backward", lambda torch: torch.tanh, kept="output"
    )
)
