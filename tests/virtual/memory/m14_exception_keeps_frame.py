"""An exception kept in a variable keeps, through its traceback, the big local of the frame that raised."""
import torch
from torch import nn

model = nn.Sequential(nn.Linear(2048, 8192), nn.GELU(), nn.Linear(8192, 2048)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
last_error = None


def measure(limit):
    probe = torch.empty(3, 2**30, dtype=torch.uint8, device="cuda")  # 3 GiB, a local only
    if probe.shape[1] > limit:
        raise ValueError("probe larger than the limit")
    return probe.float().mean()


try:
    measure(limit=1024)
except ValueError as error:
    last_error = error

for step in range(5):
    x = torch.randn(4096, 2048, device="cuda")
    loss = (model(x) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("finished; earlier:", last_error)
