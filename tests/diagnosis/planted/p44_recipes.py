"""Writes recipes word by word with a small decoder."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {"regime": ("compute", "memory"), "remedy": "kv-cache"}


class Layer(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, past=None):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if past:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=past is None).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x)), (k, v)


class Writer(nn.Module):
    def __init__(self, words=400, width=96, depth=2):
        super().__init__()
        self.embed, self.places = nn.Embedding(words, width), nn.Embedding(256, width)
        self.layers, self.head = nn.ModuleList(Layer(width) for _ in range(depth)), nn.Linear(width, words)

    def forward(self, tokens, pasts=None):
        start = pasts[0][0].shape[2] if pasts else 0
        x, new = self.embed(tokens) + self.places.weight[start : start + tokens.shape[1]], []
        for layer, past in zip(self.layers, pasts or [None] * len(self.layers), strict=True):
            x, kept = layer(x, past)
            new.append(kept)
        return self.head(x[:, -1]), new


def write(model, tokens, count):
    for _ in range(count):
        tokens = torch.cat([tokens, model(tokens)[0].argmax(-1, keepdim=True)], 1)
    return tokens


def write_on(model, tokens, count):
    logits, pasts = model(tokens)
    words = [tokens]
    for i in range(count):
        words.append(logits.argmax(-1, keepdim=True))
        if i + 1 < count:
            logits, pasts = model(words[-1], pasts)
    return torch.cat(words, 1)


def _step(way):
    torch.manual_seed(0)
    model, starts = Writer().eval(), torch.randint(0, 400, (2, 80))
    return torch.inference_mode()(lambda: way(model, starts, 16))


def make_step():
    return _step(write)


def make_step_fixed():
    return _step(write_on)
