"""Spreads a few labels over points by their affinity (label propagation with a normalised affinity matrix)."""

import torch
from torch import nn

TRUTH = {"regime": ("compute",), "remedy": ("mostly-zeros",)}


def normalise(affinity):
    scale = torch.diag(affinity.sum(1).rsqrt())
    return scale @ affinity @ scale


def normalise_rows(affinity):
    scale = affinity.sum(1).rsqrt()
    return scale[:, None] * affinity * scale[None, :]


class Propagation(nn.Module):
    def __init__(self, normalise, rounds=8, keep=0.8):
        super().__init__()
        self.embed, self.normalise, self.rounds, self.keep = nn.Linear(32, 16), normalise, rounds, keep

    def forward(self, points, known):
        codes = self.embed(points)
        affinity = torch.cdist(codes, codes).neg().exp()
        spread, labels = self.normalise(affinity), known
        for _ in range(self.rounds):
            labels = self.keep * (spread @ labels) + (1 - self.keep) * known
        return labels


def _step(normalise):
    torch.manual_seed(0)
    model, points, known = Propagation(normalise), torch.randn(640, 32), torch.zeros(640, 10)
    known[:100] = torch.eye(10).repeat(10, 1)

    @torch.inference_mode()
    def step():
        return model(points, known)

    return step


def make_step():
    return _step(normalise)


def make_step_fixed():
    return _step(normalise_rows)
