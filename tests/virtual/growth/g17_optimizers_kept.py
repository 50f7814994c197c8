"""A new optimizer each iteration, with each of the old ones (and its state) kept in a list."""
import torch
from torch import nn

model = nn.Linear(2048, 2048, bias=False).cuda()
optimizers = []

for step in range(6):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3 / (step + 1))
    optimizers.append(optimizer)  # grows: optimizers
    x = torch.randn(256, 2048, device="cuda")
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
