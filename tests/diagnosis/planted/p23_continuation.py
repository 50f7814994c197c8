"""A language model rates which word follows each of some prompts."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {"regime": ("compute",), "remedy": "unread"}


class Layer(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        q, k, v = self.qkv(F.layer_norm(x, x.shape[-1:])).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(F.layer_norm(x, x.shape[-1:]))


class Model(nn.Module):
    def __init__(self, words=12_000, width=64, depth=2):
        super().__init__()
        self.embed, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.layers = nn.Sequential(*(Layer(width) for _ in range(depth)))

    def forward(self, tokens):
        return self.head(self.layers(self.embed(tokens)))


class LastModel(Model):
    def forward(self, tokens):
        return self.head(self.layers(self.embed(tokens))[:, -1:])


def _step(kind):
    torch.manual_seed(0)
    model, prompts = kind().eval(), torch.randint(0, 12_000, (4, 96))

    @torch.inference_mode()
    def step():
        return model(prompts)[:, -1].topk(5)

    return step


def make_step():
    return _step(Model)


def make_step_fixed():
    return _step(LastModel)
