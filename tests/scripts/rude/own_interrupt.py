"""Interrupts itself while it trains, and does not catch it: it dies by the signal."""

import os
import signal

import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), flush=True)
    if step == 20:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass
