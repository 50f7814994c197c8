"""What ``runs_another.py`` runs."""

import sys

import torch

torch.manual_seed(3)
width = int(sys.argv[1])
model = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(15):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
