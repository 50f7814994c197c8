"""softmax_rows: softmax of each row; `softmax` has estimate-train-time's parameters."""

from __future__ import annotations

from functools import partial

from rooflight.operators.builders.rows_by_width import unary_operator
from rooflight.operators.registry import register

register(
    unary_operator(
        "softmax_rows",
        "softmax of each row of [rows, width]",
        "aten::_softmax",
        "aten::_softmax_backward_data",
        lambda torch: partial(torch.softmax, dim=-1),
        kept="output",
        smart_share=2,
        dim=-1,
    )
)
