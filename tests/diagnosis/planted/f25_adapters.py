"""Trains low-rank adapters on a perceptron of tables, whose own weights stay."""

import torch
from torch import nn

TRUTH = {"regime": ("compute",), "remedy": ("unused-gradients",)}


class Adapted(nn.Module):
    def __init__(self, linear, frozen, rank=4):
        super().__init__()
        self.linear = linear.requires_grad_(not frozen)
        self.down = nn.Parameter(torch.randn(rank, linear.in_features) * 0.02)
        self.up = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, x):
        return self.linear(x) + x @ self.down.T @ self.up.T


def _step(frozen):
    torch.manual_seed(0)
    layers = [Adapted(nn.Linear(512, 512), frozen) for _ in range(4)]
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())), nn.Linear(512, 1))
    optimizer = torch.optim.SGD([each for layer in layers for each in (layer.down, layer.up)], 0.01, foreach=True)
    x, y = torch.randn(256, 512), torch.randn(256, 1)

    def step():
        loss = nn.functional.mse_loss(model(x), y)
        model.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def make_step():
    return _step(False)


def make_step_fixed():
    return _step(True)
