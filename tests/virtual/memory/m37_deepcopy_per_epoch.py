"""The latest model is deep-copied after each epoch: old copy and new one are alive together for a moment."""
import copy

import torch
from torch import nn

# 12 * 8192 * 8192 * 4 = 3 GiB of weights, 3 of gradients (alive; deepcopy does not copy them), 3 of the
# older copy and 3 of the newer: 12 GiB, x (4 MiB) and the loss (512 bytes): 12_889_096_704.
model = nn.Sequential(*[nn.Linear(8192, 8192, bias=False, device="cuda") for _ in range(12)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
latest, latest_loss = None, None

for step in range(4):
    for _ in range(2):
        x = torch.randn(128, 8192, device="cuda")
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    latest, latest_loss = copy.deepcopy(model), loss.item()
