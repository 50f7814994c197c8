"""May write files of 3,000 bytes at most, as if its disk were full."""

import resource

import torch

resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(40)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()))
try:
    torch.save(model.state_dict(), "too_large.pt")
except (RuntimeError, OSError) as error:
    print("not saved:", type(error).__name__)
