"""An ensemble of small networks learns the same regression from different starts."""

import torch
from torch import nn

TRUTH = {"regime": ("overhead",), "remedy": "fused-optimizer"}


def network(width=12, depth=6):
    layers = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(nn.Linear(3, width), *layers, nn.Linear(width, 1))


def _step(**options):
    torch.manual_seed(0)
    members = nn.ModuleList(network() for _ in range(8))
    optimizer = torch.optim.AdamW(members.parameters(), lr=1e-3, **options)
    x, y = torch.randn(16, 3), torch.randn(16, 1)

    def step():
        loss = sum((member(x) - y).square().mean() for member in members)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def make_step():
    return _step(foreach=False)


def make_step_fixed():
    return _step(fused=True)
