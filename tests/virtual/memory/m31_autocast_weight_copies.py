"""autocast keeps a bfloat16 copy of each weight until its block ends, and the weights are most of it."""
import torch
from torch import nn

# 12 * 8192 * 8192: 3 GiB of float32 weights, 1.5 GiB of bfloat16 copies.
model = nn.Sequential(*[nn.Linear(8192, 8192, bias=False, device="cuda") for _ in range(12)])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

for step in range(5):
    x = torch.randn(512, 8192, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = model(x)
        loss = nn.functional.mse_loss(out, x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
