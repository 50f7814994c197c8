"""Full fine-tuning that needs more than 80 GB and less than 141 GB: float32 state of bfloat16 weights."""
import torch
from torch import nn

# 20 * 16384 * 16384 = 5.37e9 elements: bfloat16 weights and gradients 10 GiB each, float32 masters 20 GiB,
# Adam on the masters 40 GiB and their float32 gradients 20 GiB: 100 GiB, and x and `out` (2 * 4 MiB),
# and fused Adam's 20 step counts on the device (512 bytes each): 107_382_581_248.
model = nn.Sequential(*[nn.Linear(16384, 16384, bias=False, device="cuda", dtype=torch.bfloat16) for _ in range(20)])
masters = [p.detach().float().requires_grad_() for p in model.parameters()]
optimizer = torch.optim.Adam(masters, lr=1e-5, fused=True)

for step in range(5):
    x = torch.randn(128, 16384, device="cuda", dtype=torch.bfloat16)
    out = model(x)
    out.float().square().mean().backward()
    for master, p in zip(masters, model.parameters()):
        master.grad = p.grad.float()
    optimizer.step()
    with torch.no_grad():
        for master, p in zip(masters, model.parameters()):
            p.copy_(master)
            p.grad = master.grad = None
