"""softmax_rows: softmax of each row; `softmax` has the page's parameters."""

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
        family="softmax",
        dim=-1,
    )
)
