"""A small encoder reads documents of different lengths and classifies them."""

import math

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {"regime": ("memory", "compute"), "remedy": "sdpa"}


class SelfAttention(nn.Module):
    def __init__(self, width, heads, attend):
        super().__init__()
        self.heads, self.attend = heads, attend
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x, mask):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        return self.out(self.attend(q, k, v, mask).transpose(1, 2).flatten(2))


def scores_first(q, k, v, mask):
    scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
    weights = torch.softmax(scores + mask, dim=-1)
    return torch.matmul(weights, v)


def _step(attend):
    torch.manual_seed(0)
    layers = nn.ModuleList(SelfAttention(64, 8, attend) for _ in range(2)).eval()
    head, x = nn.Linear(64, 5), torch.randn(2, 512, 64)
    valid = torch.arange(512) < torch.tensor([[512], [380]])
    mask = torch.zeros(2, 1, 1, 512).masked_fill(~valid[:, None, None], torch.finfo(torch.float32).min)

    @torch.no_grad()
    def step():
        h = x
        for layer in layers:
            h = h + layer(F.layer_norm(h, (64,)), mask)
        return head(h[:, 0])

    return step


def make_step():
    return _step(scores_first)


def make_step_fixed():
    return _step(lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, attn_mask=mask))
