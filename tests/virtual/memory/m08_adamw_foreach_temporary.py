"""AdamW's default (foreach) makes a temporary as large as all the weights inside step()."""
import torch
from torch import nn

# 8 * 16384 * 16384 * 4 = 8 GiB of weights, 8 of gradients, 16 of state, 8 of square roots = 40 GiB,
# and x, 64 * 16384 * 4 = 4 MiB (the output is not kept),
# and the loss, 512 bytes: 42_953_867_776.
model = nn.Sequential(*[nn.Linear(16384, 16384, bias=False, device="cuda") for _ in range(8)])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

for step in range(5):
    x = torch.randn(64, 16384, device="cuda")
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
