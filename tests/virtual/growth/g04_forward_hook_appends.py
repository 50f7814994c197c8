"""A forward hook appends the output of the middle layer to a list."""
import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 4096), nn.GELU(), nn.Linear(4096, 256)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
activations = []


def hook(module, args, output):
    activations.append(output.detach())  # grows: activations


model[1].register_forward_hook(hook)

for step in range(6):
    x = torch.randn(2048, 256, device="cuda")
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
