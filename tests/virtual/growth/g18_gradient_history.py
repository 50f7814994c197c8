"""A history of gradients: a shallow list of p.grad, of which zero_grad only drops the reference."""
import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 2048, bias=False), nn.ReLU(), nn.Linear(2048, 1024, bias=False)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
gradients = []

for step in range(6):
    x = torch.randn(256, 1024, device="cuda")
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    gradients.append([p.grad for p in model.parameters()])  # grows: gradients
    optimizer.step()
