"""Predicts the quality of wine from measurements, scaled by the whole table."""

import itertools

import torch
from torch import nn

TRUTH = {"regime": ("compute", "memory"), "remedy": "constant-work"}


class Cellar:
    def __init__(self, table):
        self.table = table

    def scaled(self, rows):
        low, high = torch.quantile(self.table[:2000], 0.01, dim=0), torch.quantile(self.table[:2000], 0.99, dim=0)
        clipped = self.table.clamp(low, high)
        return (rows.clamp(low, high) - clipped.mean(0)) / (clipped.std(0) + 1e-6)


class ScaledCellar(Cellar):
    def __init__(self, table):
        super().__init__(table)
        low, high = torch.quantile(table[:2000], 0.01, dim=0), torch.quantile(table[:2000], 0.99, dim=0)
        clipped = table.clamp(low, high)
        self.figures = low, high, clipped.mean(0), clipped.std(0) + 1e-6

    def scaled(self, rows):
        low, high, mean, std = self.figures
        return (rows.clamp(low, high) - mean) / std


def _step(kind):
    torch.manual_seed(0)
    cellar = kind(torch.randn(40_000, 11))
    model = nn.Sequential(nn.Linear(11, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    batches = itertools.cycle(cellar.table[:8192].split(512))

    def step():
        rows = cellar.scaled(next(batches))
        loss = (model(rows).squeeze(-1) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def make_step():
    return _step(kind=Cellar)


def make_step_fixed():
    return _step(kind=ScaledCellar)
