"""Research code: follows the sharpness of a small network's loss along a random direction while it trains."""
import torch
from torch import nn
from torch.func import functional_call

TRUTH = {
    "cause": "The full Hessian is built (one backward pass for each parameter) only to be multiplied with one vector; a Hessian-vector product does that in one.",
    "lines": ["hess = torch.autograd.functional.hessian(self.loss_at, flat)", "return direction @ (hess @ direction)",
              "sharp = self.curvature(flat, self.direction)"],
    "says": ["hessian", "second derivative", "jacobian", "one backward (pass )?(for|per) each", "curvature", "double backward"],
    "remedy": ["hvp", "vhp", "hessian[- ]vector", r"jvp", "double backward", "vector product", r"grad\(.*(create_graph|grad\()", "forward[- ]over[- ]reverse"],
}


class Probe:
    def __init__(self):
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 1))
        self.shapes = [(n, p.shape, p.numel()) for n, p in self.net.named_parameters()]
        total = sum(size for *_, size in self.shapes)
        self.direction = torch.nn.functional.normalize(torch.randn(total), dim=0)
        self.x = torch.randn(1024, 6)
        self.y = self.x.sin().sum(1, keepdim=True)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05)

    def loss_at(self, flat):
        parts = flat.split([size for *_, size in self.shapes])
        params = {n: part.view(shape) for (n, shape, _), part in zip(self.shapes, parts)}
        return (functional_call(self.net, params, (self.x,)) - self.y).square().mean()

    def curvature(self, flat, direction):
        hess = torch.autograd.functional.hessian(self.loss_at, flat)
        return direction @ (hess @ direction)

    def step(self):
        loss = (self.net(self.x) - self.y).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        flat = nn.utils.parameters_to_vector(self.net.parameters()).detach()
        sharp = self.curvature(flat, self.direction)
        return loss.detach(), sharp


class ProbeByProduct(Probe):
    def curvature(self, flat, direction):
        _, product = torch.autograd.functional.vhp(self.loss_at, flat, direction)
        return direction @ product


def make_step():
    return Probe().step


def make_step_fixed():
    return ProbeByProduct().step
