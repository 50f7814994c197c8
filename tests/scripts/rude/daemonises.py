"""Its parent exits at once; the child goes on in a session of its own and trains."""

import os
import sys

import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("started", flush=True)
if os.fork():
    sys.exit(0)
os.setsid()
for descriptor in (0, 1, 2):
    os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
with open("daemon.log", "w") as log:
    for step in range(20):
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, repr(loss.item()), file=log)
open("done", "w").close()
