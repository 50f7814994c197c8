"""Snapshots: the state dict is cloned on the device after each step, and the last two are kept."""
import torch
from torch import nn

# weights 5 * 1 GiB; two older snapshots and the one being made: 3 * 5 GiB; momentum 5 GiB.
model = nn.Sequential(*[nn.Linear(16384, 16384, bias=False, device="cuda") for _ in range(5)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
snapshots = []

for step in range(5):
    x = torch.randn(256, 16384, device="cuda")
    loss = model(x).abs().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    snapshots.append({name: value.clone() for name, value in model.state_dict().items()})
    snapshots = snapshots[-2:]
