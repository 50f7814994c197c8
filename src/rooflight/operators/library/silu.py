"""silu: x times its sigmoid."""

from __future__ import annotations

from rooflight.operators.builders.rows_by_width import unary_operator
from rooflight.operators.registry import register

register(
    unary_operator(
        "silu", "SiLU of [rows, width]", "aten::silu", "aten::silu_backward", lambda torch: torch.nn.functional.silu
    )
)
