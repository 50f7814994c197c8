"""log_softmax_rows: log-softmax of each row."""

from __future__ import annotations

from functools import partial

from rooflight.operators.builders.rows_by_width import unary_operator
from rooflight.operators.registry import register

register(
    unary_operator(
        "log_softmax_rows",
        "log-softmax of each row of [rows, width]",
        "aten::_log_softmax",
        "aten::_log_softmax_backward_data",
        lambda torch: partial(torch.log_softmax, dim=-1),
        kept="output",
        dim=-1,
    )
)
