"""Changes folder, and replaces ``sys.argv``, ``sys.stdout`` and ``sys.stderr``."""

import io
import os
import sys

import torch

sys.argv[:] = ["replaced"]
os.makedirs("inner", exist_ok=True)
os.chdir("inner")
stdout, sys.stdout, sys.stderr = sys.stdout, io.StringIO(), io.StringIO()
torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()))
open("log.txt", "w").write(sys.stdout.getvalue() + sys.stderr.getvalue())
stdout.write(sys.stdout.getvalue())
del os.environ["PATH"]
