"""relu: the positive part."""

from __future__ import annotations

from rooflight.sampling.alike import unary_operator
from rooflight.sampling.registry import register

register(
    unary_operator("relu", "relu of [rows, width]", "aten::relu", "aten::threshold_backward", lambda torch: torch.relu)
)
