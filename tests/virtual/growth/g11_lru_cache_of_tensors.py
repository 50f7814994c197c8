"""functools.lru_cache on a function that returns a tensor on the device, with a new argument each time."""
import functools

import torch
from torch import nn


@functools.lru_cache(maxsize=None)  # grows: positions
def positions(offset):
    return torch.arange(offset, offset + 2048, device="cuda").float()[:, None] * torch.ones(1, 1024, device="cuda")


model = nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.Adam(model.parameters())

for step in range(6):
    x = torch.randn(2048, 1024, device="cuda")
    loss = (model(x + positions(step * 2048)) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
