"""Trains on the lines of standard input."""

import sys

import torch

torch.manual_seed(0)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
print("first", input())
for line in sys.stdin:
    loss = (model(torch.tensor([[float(line)]])) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(line.strip(), repr(loss.item()))
print("end", sys.stdin.read() == "", sys.stdin.fileno())
