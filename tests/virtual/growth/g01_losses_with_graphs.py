"""A list of auxiliary losses, none of which is used for a backward pass: each keeps its whole graph."""
import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 2048), nn.Tanh(), nn.Linear(2048, 1024)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
auxiliary = []

for step in range(6):
    x = torch.randn(4096, 1024, device="cuda")
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    noise = torch.randn(2048, 1024, device="cuda")
    auxiliary.append(model(noise).mean())  # grows: auxiliary
