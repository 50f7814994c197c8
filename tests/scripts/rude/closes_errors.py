"""Closes standard error, and its descriptor too, before it trains."""

import os
import sys

import torch

sys.stderr.close()
os.close(2)
torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with open(f"{step % 2}.log", "a") as log:
        print(step, repr(loss.item()), log.fileno(), file=log)
print("done")
