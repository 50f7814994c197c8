"""Linear layers whose kernels bypass the dispatcher: what they read and write, and in which memory."""

from __future__ import annotations

import pytest
import torch
from recorded_model import recorded
from standin_modules import TELinear
from torch import nn


def unseen(session):
    return [op for op in session.records if op.signature.is_unseen]


@pytest.mark.parametrize("setting", ["te_return_bias", "return_bias"])
def test_a_bias_that_is_returned_is_not_read(setting):
    model = TELinear(8, 6)
    setattr(model, setting, True)
    (linear, *_) = unseen(recorded(lambda: model(torch.ones(2, 3, 8))[0].sum().backward(), model))
    assert linear.signature.input_bytes == 4 * (48 + 48)  # x, weight


def test_bytes_and_storages_of_a_linear_layer():
    model = nn.Sequential(nn.Linear(4, 8), TELinear(8, 6))
    session = recorded(lambda: model(torch.ones(2, 3, 4))[0].relu().sum().backward(), model)
    linear, dx, dw = unseen(session)
    assert [op.signature.name for op in (linear, dx, dw)] == ["aten::linear", *["aten::linear_backward"] * 2]
    # x 48, weight 48 and bias 6 read, 36 written
    assert (linear.signature.input_bytes, linear.signature.output_bytes) == (4 * 102, 4 * 36)
    assert (dx.signature.output_bytes, dw.signature.output_bytes) == (4 * 48, 4 * (48 + 6))
    by_name = {op.signature.name: op for op in session.records}
    assert linear.reads[0] == by_name["aten::addmm"].writes[0]
    assert by_name["aten::relu"].reads == linear.writes
    assert dx.reads[1] == by_name["aten::threshold_backward"].writes[0]
    assert dx.writes[0] in by_name["aten::mm"].reads
    assert [op.direction.label for op in (linear, dx, dw)] == ["forward", "backward", "backward"]
