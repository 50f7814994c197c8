"""silu: x times its sigmoid."""

from __future__ import annotations

from rooflight.sampling.alike import unary_operator
from rooflight.sampling.registry import register

register(
    unary_operator(
        "silu", "SiLU of [rows, width]", "aten::silu", "aten::silu_backward", lambda torch: torch.nn.functional.silu
    )
)
