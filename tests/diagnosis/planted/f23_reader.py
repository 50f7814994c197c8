"""Reads long texts with a wide encoder layer: one product for queries, keys and values, and SDPA."""

import torch
from torch import nn
from torch.nn import functional as F

TRUTH = {"regime": ("compute",), "remedy": None}


class Layer(nn.Module):
    def __init__(self, width=768, heads=12):
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.parts, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.parts(self.norms[0](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(*parts.unbind()).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(seen)
        return x + self.narrow(F.relu(self.wide(self.norms[1](x)), inplace=True))


def make_step():
    torch.manual_seed(0)
    layer, x = Layer().eval(), torch.randn(2, 256, 768)

    @torch.inference_mode()
    def step():
        return layer(x)

    return step


make_step_fixed = make_step
