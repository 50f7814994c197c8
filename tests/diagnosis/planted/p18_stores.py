"""Sales of several hundred stores, each with a profile of its own; the optimizer is as in a paper, written by hand."""

import torch
from torch import nn

TRUTH = {"regime": ("overhead",), "remedy": ("fused-optimizer", "vectorise")}


class SignMomentum(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, beta=0.9, decay=0.01):
        super().__init__(params, {"lr": lr, "beta": beta, "decay": decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            keep, beta = 1 - group["lr"] * group["decay"], group["beta"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.mul_(keep)
                p.add_((m * beta + p.grad * (1 - beta)).sign(), alpha=-group["lr"])
                m.mul_(0.99).add_(p.grad * 0.01)


class GroupedSignMomentum(SignMomentum):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            params, beta = group["params"], group["beta"]
            grads = [p.grad for p in params]
            moments = [self.state[p].setdefault("m", torch.zeros_like(p)) for p in params]
            lengths = [p.numel() for p in params]
            p, m, g = (torch.cat(each) for each in (params, moments, grads))
            p = p * (1 - group["lr"] * group["decay"]) - group["lr"] * (m * beta + g * (1 - beta)).sign()
            m = m * 0.99 + g * 0.01
            torch._foreach_copy_(params, p.split(lengths))
            torch._foreach_copy_(moments, m.split(lengths))


def _step(kind):
    torch.manual_seed(0)
    profiles = nn.ParameterList(torch.randn(8) for _ in range(500))
    optimizer, days, sold = kind(profiles), torch.randn(30, 8), torch.randn(30, 500)

    def step():
        loss = (days @ torch.stack(list(profiles), 1) - sold).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def make_step():
    return _step(SignMomentum)


def make_step_fixed():
    return _step(GroupedSignMomentum)
