"""Statistics gathered in a defaultdict of lists, one tensor a name and a step."""
from collections import defaultdict

import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 1024)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
statistics = defaultdict(list)

for step in range(6):
    x = torch.randn(512, 1024, device="cuda")
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for name, p in model.named_parameters():
        statistics[name].append(p.grad.abs())  # grows: statistics
    optimizer.step()
