"""A compiled model of visitors that counts its own calls."""

import torch
import torch._dynamo
from torch import nn

TRUTH = {"regime": ("overhead",), "remedy": ("recompiles",)}
torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 100_000


class Counted(nn.Module):
    def __init__(self, width, counting):
        super().__init__()
        self.inner, self.counting, self.calls = nn.Linear(width, width), counting, 0

    def forward(self, x):
        if self.counting:
            self.calls += 1
        return torch.tanh(self.inner(x)) + x


class Visitors(nn.Module):
    def __init__(self, counting, width=128):
        super().__init__()
        self.body = Counted(width, counting)
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.body(x))


def _step(counting):
    torch.manual_seed(0)
    model = torch.compile(Visitors(counting), backend="eager")
    visitors = torch.randn(256, 128)

    @torch.no_grad()
    def step():
        return model(visitors)

    return step


def make_step():
    return _step(True)


def make_step_fixed():
    return _step(False)
