"""A spectral model of currents: a stack of mixing layers over a grid, in mixed precision."""

import torch
import torch.nn.functional as F

TRUTH = {"regime": ("memory", "overhead"), "remedy": "casts"}


def careful(x, scale):
    x = (x.double() * scale.double()).float()
    x = (x.bfloat16() + 0.1).float()
    x = F.relu(x.double()).float()
    x = x.bfloat16().float() - x.double().mean(-1, keepdim=True).float()
    return x


def plain(x, scale):
    x = x * scale
    x = (x.bfloat16() + 0.1).float()
    x = F.relu(x)
    return x.bfloat16().float() - x.mean(-1, keepdim=True)


def _step(layer):
    torch.manual_seed(0)
    field, scales = torch.randn(16, 128, 256), torch.rand(4, 256) + 0.5

    @torch.no_grad()
    def step():
        x = field
        for scale in scales:
            x = layer(x, scale)
        return x.mean((1, 2))

    return step


def make_step():
    return _step(careful)


def make_step_fixed():
    return _step(plain)
