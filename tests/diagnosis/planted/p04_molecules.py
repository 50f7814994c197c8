"""Atoms attend to each other, biased by their distances; the model predicts an energy per molecule."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {"regime": ("memory", "compute"), "remedy": "sdpa"}


class AtomBlock(nn.Module):
    def __init__(self, width=64, heads=8):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.sharpness = nn.Parameter(torch.linspace(0.1, 2, heads))

    def forward(self, atoms, distance):
        q, k, v = self.qkv(atoms).unflatten(-1, (3, self.heads, -1)).unbind(2)
        bias = -self.sharpness.view(-1, 1, 1) * distance.unsqueeze(1)
        return atoms + self.out(self.mix(q, k, v, bias).flatten(2))

    def mix(self, q, k, v, bias):
        logits = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
        return torch.einsum("bhij,bjhd->bihd", (logits + bias).softmax(-1), v)


class FusedAtomBlock(AtomBlock):
    def mix(self, q, k, v, bias):
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2)


def _step(kind):
    torch.manual_seed(0)
    blocks, energy = nn.ModuleList(kind() for _ in range(2)).eval(), nn.Linear(64, 1)
    atoms, places = torch.randn(2, 400, 64), torch.randn(2, 400, 3)
    distance = torch.cdist(places, places)

    @torch.no_grad()
    def step():
        h = atoms
        for block in blocks:
            h = block(h, distance)
        return energy(h).sum((1, 2))

    return step


def make_step():
    return _step(AtomBlock)


def make_step_fixed():
    return _step(FusedAtomBlock)
