"""Is ended by a SIGTERM to itself, as a scheduler would, in the middle of training and with text not yet flushed."""

import signal
import sys

import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()))
    if step == 20:
        sys.stdout.flush()
        print("this is never flushed")
        signal.raise_signal(signal.SIGTERM)
