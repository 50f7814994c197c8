"""Entropic optimal transport between two clouds of points."""

import torch

TRUTH = {"regime": ("overhead",), "remedy": "sync"}


def plan(cost, rate=0.02, tolerance=1e-7, every=1):
    kernel = torch.exp(-cost / rate)
    u = torch.full((cost.shape[0],), 1 / cost.shape[0])
    v, target = torch.ones(cost.shape[1]), 1 / cost.shape[1]
    for i in range(2000):
        before = u
        v = target / (kernel.T @ u)
        u = target / (kernel @ v)
        if i % every == 0:
            change = (u - before).abs().max().item()
            marginal = ((u.unsqueeze(1) * kernel * v).sum(0) - target).abs().sum().item()
            if change < tolerance and marginal < tolerance:
                break
    return u.unsqueeze(1) * kernel * v


def _step(every):
    torch.manual_seed(0)
    cost = torch.cdist(torch.rand(48, 2), torch.rand(48, 2))
    return torch.no_grad()(lambda: plan(cost, every=every))


def make_step():
    return _step(1)


def make_step_fixed():
    return _step(20)
