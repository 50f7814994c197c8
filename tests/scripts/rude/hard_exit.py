"""Calls ``os._exit`` after training: no atexit, no finally runs."""

import os
import sys

import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()))
sys.stdout.flush()
print("this is never flushed")
os._exit(5)
