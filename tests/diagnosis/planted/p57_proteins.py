"""A deep thin network over protein features, trained with care for steep places."""

import torch
from torch import nn

TRUTH = {"regime": ("overhead",), "remedy": ("sync", "vectorise", "fused-optimizer")}


def limit(params, longest=1.0):
    total = 0.0
    for p in params:
        total += p.grad.norm().item() ** 2
    scale = longest / (total**0.5 + 1e-6)
    for p in params:
        if scale < 1:
            p.grad.mul_(scale)
        if torch.isnan(p.grad).any().item():
            p.grad.zero_()


def limit_together(params, longest=1.0):
    grads = [p.grad for p in params]
    norms = torch.stack(torch._foreach_norm(grads))
    if torch.isnan(norms).any():
        raise ValueError("not a number")
    torch._foreach_mul_(grads, (longest / (norms.square().sum().sqrt() + 1e-6)).clamp(max=1.0))


def _step(clip):
    torch.manual_seed(0)
    profiles = nn.ParameterList(torch.randn(12) for _ in range(400))
    optimizer, x, y = torch.optim.SGD(profiles, lr=0.1, fused=True), torch.randn(20, 12), torch.randn(20, 400)

    def step():
        loss = (torch.tanh(x @ torch.stack(list(profiles), 1)) - y).square().sum()
        optimizer.zero_grad()
        loss.backward()
        clip(list(profiles))
        optimizer.step()
        return loss.detach()

    return step


def make_step():
    return _step(limit)


def make_step_fixed():
    return _step(limit_together)
