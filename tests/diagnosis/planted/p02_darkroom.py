"""Develops raw frames: white balance, exposure, a filmic curve, saturation, vignette."""

import torch

TRUTH = {"regime": ("memory",), "remedy": "compile"}


def develop(raw, balance, vignette, exposure):
    x = raw * balance
    x = x * exposure + 0.004
    x = x - 0.002 * (1 - x)
    shoulder = x * (2.51 * x + 0.03)
    toe = x * (2.43 * x + 0.59) + 0.14
    x = (shoulder / toe).clamp(0, 1)
    grey = 0.3 * x[:, :1] + 0.59 * x[:, 1:2] + 0.11 * x[:, 2:]
    x = grey + 1.15 * (x - grey)
    x = x * vignette
    return (x.clamp(0, 1) * 255).round() / 255


def _step(function):
    torch.manual_seed(0)
    raw = torch.rand(2, 3, 480, 640)
    balance = torch.tensor([1.9, 1.0, 1.6]).view(1, 3, 1, 1)
    y, x = torch.linspace(-1, 1, 480).view(-1, 1), torch.linspace(-1, 1, 640)
    vignette = 1 - 0.2 * (x * x + y * y)

    @torch.no_grad()
    def step():
        return function(raw, balance, vignette, 1.3)

    return step


def make_step():
    return _step(develop)


def make_step_fixed():
    return _step(torch.compile(develop))
