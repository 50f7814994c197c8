"""Trains a wide model of a furnace on readings that fit the memory."""

import torch
from torch import nn

TRUTH = {"regime": ("compute",), "remedy": None}


def _step():
    torch.manual_seed(0)
    model = nn.Sequential(
        *(part for _ in range(2) for part in (nn.Linear(768, 768), nn.ReLU(inplace=True))), nn.Linear(768, 256)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    x, y = torch.randn(1024, 768), torch.randn(1024, 256)

    def step():
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


make_step = make_step_fixed = _step
