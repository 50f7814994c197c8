"""Word vectors by negative sampling."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {"regime": ("memory",), "remedy": "sparse-gradient"}


class SkipGram(nn.Module):
    def __init__(self, words=60_000, width=48, **options):
        super().__init__()
        self.inner, self.outer = nn.Embedding(words, width, **options), nn.Embedding(words, width, **options)

    def forward(self, centre, context, noise):
        v = self.inner(centre)
        good = (v * self.outer(context)).sum(-1)
        bad = torch.einsum("bd,bkd->bk", v, self.outer(noise))
        return -(F.logsigmoid(good).mean() + F.logsigmoid(-bad).sum(1).mean())


def _step(**options):
    torch.manual_seed(0)
    model = SkipGram(**options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.025)
    words = torch.randint(0, 60_000, (256, 7))

    def step():
        loss = model(words[:, 0], words[:, 1], words[:, 2:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def make_step():
    return _step()


def make_step_fixed():
    return _step(sparse=True)
