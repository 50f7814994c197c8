"""Private training: each sample's gradient is clipped before they are added."""

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

TRUTH = {"regime": ("overhead",), "remedy": ("vectorise",)}


def clipped(norms):
    return (1.0 / (norms + 1e-6)).clamp(max=1.0)


class Private:
    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
        self.weights = dict(self.model.named_parameters())

    def loss(self, weights, x, y):
        return (functional_call(self.model, weights, (x,)) - y).square().mean()

    def gradient(self, xs, ys):
        total = [torch.zeros_like(weight) for weight in self.weights.values()]
        for x, y in zip(xs, ys):
            each = torch.autograd.grad(self.loss(self.weights, x, y), list(self.weights.values()))
            scale = clipped(torch.cat([part.flatten() for part in each]).norm())
            for sum_, part in zip(total, each):
                sum_ += part * scale
        return total


class PrivateAtOnce(Private):
    def gradient(self, xs, ys):
        weights = {name: weight.detach() for name, weight in self.weights.items()}
        each = vmap(grad(self.loss), (None, 0, 0))(weights, xs, ys).values()
        scale = clipped(torch.cat([part.flatten(1) for part in each], 1).norm(dim=1))
        return [torch.tensordot(scale, part, 1) for part in each]


def _step(kind):
    trained, xs, ys = kind(), torch.randn(48, 32), torch.randn(48, 1)
    return lambda: trained.gradient(xs, ys)[0]


def make_step():
    return _step(Private)


def make_step_fixed():
    return _step(PrivateAtOnce)
