"""An exponential moving average of the weights is a whole second copy on the device."""
import copy

import torch
from torch import nn

# Weights: 4 * 8192 * 8192 * 4 bytes = 1 GiB.  Peak inside the optimizer's step (foreach):
# weights 1 + EMA 1 + gradients 1 + exp_avg 1 + exp_avg_sq 1 + its square root 1 = 6 GiB,
# plus x and the last output kept by names (2 * 256 * 8192 * 4 = 16 MiB),
# plus the loss (512 bytes): 6_459_228_672.
model = nn.Sequential(*[nn.Linear(8192, 8192, bias=False, device="cuda") for _ in range(4)])
ema = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

for step in range(5):
    x = torch.randn(256, 8192, device="cuda")
    out = model(x)
    loss = out.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for old, new in zip(ema.parameters(), model.parameters()):
            old.mul_(0.999).add_(new, alpha=0.001)
