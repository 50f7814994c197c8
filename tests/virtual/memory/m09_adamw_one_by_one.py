"""AdamW(foreach=False): the temporaries are those of one weight at a time."""
import torch
from torch import nn

# 8 GiB of weights, 8 of gradients, 16 of state = 32 GiB; and for a weight after the first: its square
# root (1 GiB), the quotient of it (1 GiB) and `denom` of the weight before (1 GiB), not yet
# overwritten: 35 GiB, x (4 MiB) and the loss (512 bytes): 37_585_158_656.
model = nn.Sequential(*[nn.Linear(16384, 16384, bias=False, device="cuda") for _ in range(8)])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)

for step in range(5):
    x = torch.randn(64, 16384, device="cuda")
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
