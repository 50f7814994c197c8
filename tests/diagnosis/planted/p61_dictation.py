"""Rates dictation: what was recognised against what was said."""

import torch
from torch import nn

TRUTH = {"regime": ("overhead",), "remedy": "host-code"}


def distance(said, heard):
    row = list(range(len(heard) + 1))
    for i, a in enumerate(said, 1):
        last, row[0] = row[0], i
        for j, b in enumerate(heard, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (a != b))
    return row[-1]


def rate_plainly(said, heard):
    return torch.tensor([distance(a, b) / len(a) for a, b in zip(said.tolist(), heard.tolist(), strict=True)])


def rate_together(said, heard):
    n, m = said.shape[1], heard.shape[1]
    places = torch.arange(m + 1)
    row = places.repeat(len(said), 1)
    for i in range(n):
        change = row[:, :-1] + (said[:, i : i + 1] != heard).long()
        best = torch.cat([row[:, :1] + 1, torch.minimum(change, row[:, 1:] + 1)], 1)
        row = (best - places).cummin(1).values + places
    return row[:, -1] / n


def _step(rate):
    torch.manual_seed(0)
    model, sound, said = nn.Linear(20, 30), torch.randn(24, 40, 20), torch.randint(0, 30, (24, 40))
    return torch.no_grad()(lambda: rate(said, model(sound).argmax(-1)))


def make_step():
    return _step(rate_plainly)


def make_step_fixed():
    return _step(rate_together)
