"""Deferred statistics: closures made in one iteration and called in the next keep its activations."""
import torch
from torch import nn

encoder = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU()).cuda()
head = nn.Linear(4096, 1024).cuda()
optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.01)
deferred = []


def remember(hidden, target):
    def report():
        return hidden.detach().abs().mean().item(), target.mean().item()

    deferred.append(report)


for step in range(5):
    x = torch.randn(65536, 1024, device="cuda")
    hidden = encoder(x)
    loss = (head(hidden) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for report in deferred:
        print(step, *report())
    deferred.clear()
    remember(hidden, x)
