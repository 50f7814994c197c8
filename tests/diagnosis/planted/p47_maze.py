"""A transformer plans in mazes; cells see what is near, and places enter as waves."""

import math

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {"regime": ("compute", "memory", "overhead"), "remedy": "constant-work"}


def tables(side=24, width=32, reach=5):
    cells = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"), -1).view(-1, 2).float()
    near = torch.cdist(cells, cells) <= reach
    mask = torch.zeros(side * side, side * side).masked_fill(~near, -torch.inf)
    rates = torch.exp(-math.log(100) * torch.arange(width // 4) / (width // 4))
    angles = cells.unsqueeze(-1) * rates
    return mask, torch.cat([angles.sin(), angles.cos()], -1).flatten(1)


class Planner(nn.Module):
    def __init__(self, kept, width=32, depth=1):
        super().__init__()
        self.enter, self.kept = nn.Linear(3, width), tables() if kept else None
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))

    def forward(self, maze):
        mask, waves = self.kept or tables()
        x = self.enter(maze) + waves
        for qkv in self.qkv:
            q, k, v = qkv(x).unflatten(-1, (3, 1, -1)).permute(2, 0, 3, 1, 4)
            x = x + F.scaled_dot_product_attention(q, k, v, attn_mask=mask).squeeze(1)
        return x.mean(1)


def _step(kept):
    torch.manual_seed(0)
    planner, mazes = Planner(kept).eval(), torch.randn(1, 576, 3)
    return torch.inference_mode()(lambda: planner(mazes))


def make_step():
    return _step(kept=False)


def make_step_fixed():
    return _step(kept=True)
