"""Requests are answered by specialists; the router gave each specialist the same number of them."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {"regime": ("overhead", "latency", "compute"), "remedy": ("batch-products", "vectorise")}


class Specialists(nn.Module):
    def __init__(self, count=96, width=32):
        super().__init__()
        self.up = nn.Parameter(torch.randn(count, width, 2 * width) * 0.1)
        self.down = nn.Parameter(torch.randn(count, 2 * width, width) * 0.1)

    def forward(self, slots):
        out = torch.empty_like(slots)
        for i, (up, down) in enumerate(zip(self.up, self.down, strict=True)):
            out[i] = F.silu(slots[i] @ up) @ down
        return out


class JointSpecialists(Specialists):
    def forward(self, slots):
        return torch.bmm(F.silu(torch.bmm(slots, self.up)), self.down)


def _step(kind):
    torch.manual_seed(0)
    layers, slots = nn.ModuleList(kind() for _ in range(3)).eval(), torch.randn(96, 4, 32)

    @torch.inference_mode()
    def step():
        x = slots
        for layer in layers:
            x = x + layer(F.layer_norm(x, (32,)))
        return x

    return step


def make_step():
    return _step(Specialists)


def make_step_fixed():
    return _step(JointSpecialists)
