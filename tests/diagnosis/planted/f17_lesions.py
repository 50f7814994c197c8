"""Focal loss of a map of lesions, written out, with its gradient."""

import torch
from torch import nn

TRUTH = {"regime": ("memory",), "remedy": ("compile",)}


def focal(scores, truth, alpha: float = 0.25):
    chance = scores.sigmoid()
    hit = chance * truth + (1 - chance) * (1 - truth)
    balance = alpha * truth + (1 - alpha) * (1 - truth)
    miss = 1 - hit
    return (-balance * miss * miss * (hit + 1e-6).log()).mean()


def _step(loss):
    torch.manual_seed(0)
    head = nn.Conv2d(8, 1, 1)
    features, truth = torch.randn(4, 8, 256, 256), (torch.rand(4, 1, 256, 256) < 0.05).float()

    def step():
        head.zero_grad()
        result = loss(head(features), truth)
        result.backward()
        return result.detach()

    return step


def make_step():
    return _step(focal)


def make_step_fixed():
    return _step(torch.compile(focal))
