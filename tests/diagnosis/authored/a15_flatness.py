"""Trains a regression of yields and watches how sharp the loss is along the gradient."""
import torch
from torch.autograd.functional import hessian, hvp

TRUTH = {
    "cause": "The curvature along one direction is taken from the full Hessian (one backward pass per parameter); a Hessian-vector product needs two passes.",
    "lines": ["matrix = hessian(lambda w: loss_of(w, x, y), weights)", "return direction @ matrix @ direction",
              "sharpness = self.curvature(w, direction, x, y)"],
    "says": ["hessian", "second derivative", "jacobian", "curvature", "per parameter|each parameter|every parameter", "backward"],
    "remedy": [r"\bhvp\b", r"\bvhp\b", "hessian.vector", "vector product", "double backward|second backward", r"\bjvp\b", "directional", "vectori[sz]e ?= ?True|vmap", "less often|every \\w+ steps"],
}

SHAPES = [(12, 24), (24,), (24, 8), (8,), (8, 1), (1,)]
SIZES = [torch.Size(s).numel() for s in SHAPES]


def predict(weights, x):
    w1, b1, w2, b2, w3, b3 = [part.view(shape) for part, shape in zip(weights.split(SIZES), SHAPES)]
    h = torch.tanh(x @ w1 + b1)
    return (torch.tanh(h @ w2 + b2) @ w3 + b3).squeeze(1)


def loss_of(weights, x, y):
    return (predict(weights, x) - y).square().mean()


def curvature(weights, direction, x, y):
    matrix = hessian(lambda w: loss_of(w, x, y), weights)
    return direction @ matrix @ direction


def curvature_fixed(weights, direction, x, y):
    _, product = hvp(lambda w: loss_of(w, x, y), weights, direction)
    return direction @ product


class Fit:
    def __init__(self, curvature):
        torch.manual_seed(23)
        self.weights = (torch.randn(sum(SIZES)) * 0.3).requires_grad_()
        self.opt = torch.optim.Adam([self.weights], lr=3e-3)
        self.curvature = curvature
        self.g = torch.Generator().manual_seed(24)

    def step(self):
        x = torch.randn(64, 12, generator=self.g)
        y = x[:, 0] * x[:, 1] - x[:, 2]
        loss = loss_of(self.weights, x, y)
        self.opt.zero_grad()
        loss.backward()
        w = self.weights.detach()
        direction = self.weights.grad / self.weights.grad.norm()
        sharpness = self.curvature(w, direction, x, y)
        self.opt.step()
        return {"loss": loss.detach(), "sharpness": sharpness}


def make_step():
    return Fit(curvature).step


def make_step_fixed():
    return Fit(curvature_fixed).step
