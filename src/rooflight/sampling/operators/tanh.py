"""tanh: the hyperbolic tangent."""

from __future__ import annotations

from rooflight.sampling.alike import unary_operator
from rooflight.sampling.registry import register

register(
    unary_operator(
        "tanh", "tanh of [rows, width]", "aten::tanh", "aten::tanh_backward", lambda torch: torch.tanh, kept="output"
    )
)
