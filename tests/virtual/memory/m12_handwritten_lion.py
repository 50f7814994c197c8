"""A hand-written Lion whose momentum lives in a plain dict and appears in the first step."""
import torch
from torch import nn

# Weights 0.5 + 0.5 + 1 GiB, gradients 2, momentum 2; `update` of the last weight (1 GiB) stays until
# the next iteration, where zeros_like of the first weight (0.5) is made for nothing: 7.5 GiB and x.
model = nn.Sequential(*[nn.Linear(16384, 8192, bias=False), nn.Tanh(), nn.Linear(8192, 16384, bias=False)]).cuda()
model.append(nn.Linear(16384, 16384, bias=False, device="cuda"))
momentum = {}

for step in range(5):
    x = torch.randn(128, 16384, device="cuda")
    loss = model(x).pow(2).mean()
    loss.backward()
    with torch.no_grad():
        for name, p in model.named_parameters():
            m = momentum.setdefault(name, torch.zeros_like(p))
            update = m.mul(0.9).add_(p.grad, alpha=0.1).sign_()
            p.mul_(1 - 1e-3).add_(update, alpha=-1e-4)
            m.mul_(0.99).add_(p.grad, alpha=0.01)
            p.grad = None
