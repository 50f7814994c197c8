"""Energies of crystals from the kinds of their atoms."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {"regime": ("compute", "memory"), "remedy": "mostly-zeros"}


class Crystal(nn.Module):
    def __init__(self, kinds=1200, width=64):
        super().__init__()
        self.kinds, self.table = kinds, nn.Parameter(torch.randn(kinds, width) * 0.1)
        self.energy = nn.Sequential(nn.Linear(width, 32), nn.SiLU(), nn.Linear(32, 1))

    def forward(self, atoms):
        return self.energy(self.describe(atoms)).sum((1, 2))

    def describe(self, atoms):
        return F.one_hot(atoms, self.kinds).float() @ self.table


class LookingCrystal(Crystal):
    def describe(self, atoms):
        return self.table[atoms]


def _step(kind):
    torch.manual_seed(0)
    crystal, atoms = kind().eval(), torch.randint(0, 1200, (16, 60))
    return torch.inference_mode()(lambda: crystal(atoms))


def make_step():
    return _step(Crystal)


def make_step_fixed():
    return _step(LookingCrystal)
