"""Evaluation with averaged weights: param.data is swapped, and the training weights wait in a list."""
import torch
from torch import nn

# 6 * 16384 * 16384 * 2 = 3 GiB as bfloat16; averages in float32, 6 GiB, cast anew at each swap (3 GiB);
# gradients 3 GiB: 15 GiB, and x, activations, the last p.float() is gone by then.
model = nn.Sequential(*[nn.Linear(16384, 16384, bias=False, device="cuda", dtype=torch.bfloat16) for _ in range(6)])
averages = [p.detach().float() for p in model.parameters()]
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for step in range(5):
    x = torch.randn(256, 16384, device="cuda", dtype=torch.bfloat16)
    loss = model(x).float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for average, p in zip(averages, model.parameters()):
            average.lerp_(p.float(), 0.01)
        waiting = [p.data for p in model.parameters()]
        for average, p in zip(averages, model.parameters()):
            p.data = average.to(p.dtype)
        print(step, model(x).float().square().mean().item())
        for p, data in zip(model.parameters(), waiting):
            p.data = data
