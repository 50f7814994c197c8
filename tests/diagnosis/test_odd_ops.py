"""No rule stumbles over an op that is not as most of its name are: a kernel without results, flat or sparse tensors."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import rooflight as rl
from rooflight.records.tensor import Packing


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.normal = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.words, self.hidden, self.recurrent = nn.Embedding(32, 16), nn.Linear(16, 16), nn.LSTM(16, 16)

    def forward(self, image, words):
        pooled = self.normal(self.image(image)).relu().flatten(1)[:, :16]
        x = self.hidden(nn.functional.rms_norm(self.words(words), (16,))) + pooled[:, None]
        scores = (x @ x.mT).masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), float("-inf")).softmax(-1)
        x = self.recurrent(scores @ x)[0].to(torch.float64).float()
        return nn.functional.scaled_dot_product_attention(x, x, x)[:, [0, 1]].double().sum().log_softmax(0)


@pytest.fixture(scope="module")
def sessions():
    model = Model()
    optimizer = torch.optim.Adam(model.parameters())
    with rl.record(model, memory=True) as training:
        model(torch.randn(2, 3, 8, 8), torch.zeros(2, 6, dtype=torch.int64)).backward()
        optimizer.step()
    with rl.record(model, memory=True) as inference, torch.no_grad():
        for length in range(1, 6):
            model.hidden(torch.randn(1, length, 16))
    return training.session, inference.session


def flat(tensor):
    return replace(tensor, shape=(tensor.numel,), strides=None)


ODD = {
    "no results": lambda op: replace(op, outputs=()),
    "no inputs": lambda op: replace(op, inputs=(), input_names=()),
    "single numbers": lambda op: replace(
        op,
        inputs=tuple(replace(each, shape=(), strides=None) for each in op.inputs),
        outputs=tuple(replace(each, shape=(), strides=None) for each in op.outputs),
    ),
    "flat": lambda op: replace(op, inputs=tuple(map(flat, op.inputs)), outputs=tuple(map(flat, op.outputs))),
    "sparse": lambda op: replace(
        op, inputs=tuple(replace(flat(each), packing=Packing("sparse_coo", each.shape, 8)) for each in op.inputs)
    ),
}


@pytest.mark.parametrize("how", ODD)
def test_each_op_may_be_odd(sessions, how):
    for session in sessions:
        for name in {op.name for op in session.signatures}:
            ops = tuple(ODD[how](op) if op.name == name else op for op in session.signatures)
            rl.diagnose(rl.analyze(replace(session, signatures=ops), "H100-SXM5-80GB"))
