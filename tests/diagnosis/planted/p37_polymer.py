"""Scores pairs of monomers under several bilinear forms."""

import torch
from torch import nn

TRUTH = {"regime": ("overhead", "latency", "compute"), "remedy": ("batch-products", "vectorise")}


class Forms(nn.Module):
    def __init__(self, heads=32, width=128, size=8):
        super().__init__()
        self.left = nn.ModuleList(nn.Linear(width, size, bias=False) for _ in range(heads))
        self.right = nn.ModuleList(nn.Linear(width, size, bias=False) for _ in range(heads))

    def forward(self, x, y):
        return torch.stack([a(x) @ b(y).T for a, b in zip(self.left, self.right, strict=True)])


class JointForms(Forms):
    def forward(self, x, y):
        left, right = (torch.cat([part.weight for part in side]) for side in (self.left, self.right))
        a = (x @ left.T).unflatten(1, (len(self.left), -1)).transpose(0, 1)
        b = (y @ right.T).unflatten(1, (len(self.left), -1)).permute(1, 2, 0)
        return a @ b


def _step(kind):
    torch.manual_seed(0)
    forms, monomers = kind().eval(), torch.randn(40, 2, 24, 128)

    @torch.inference_mode()
    def step():
        return torch.stack([forms(x, y).amax((1, 2)) for x, y in monomers])

    return step


def make_step():
    return _step(Forms)


def make_step_fixed():
    return _step(JointForms)
