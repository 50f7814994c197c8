"""Trains an encoder that finds failures in sequences of log lines."""

import torch
from torch import nn

TRUTH = {"regime": ("memory", "compute"), "remedy": ("sdpa", "unread")}


class Layer(nn.Module):
    def __init__(self, width, heads, weights):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.options = {} if weights else {"need_weights": False}

    def forward(self, x):
        y = self.norms[0](x)
        y, _ = self.attention(y, y, y, **self.options)
        x = x + y
        return x + self.feed(self.norms[1](x))


class Encoder(nn.Module):
    def __init__(self, weights, width=96):
        super().__init__()
        self.lines = nn.Embedding(400, width)
        self.layers = nn.ModuleList(Layer(width, 6, weights) for _ in range(2))
        self.head = nn.Linear(width, 2)

    def forward(self, lines):
        x = self.lines(lines)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def _step(weights):
    torch.manual_seed(0)
    model = Encoder(weights)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    lines, failed = torch.randint(0, 400, (4, 448)), torch.randint(0, 2, (4,))

    def step():
        loss = nn.functional.cross_entropy(model(lines), failed)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def make_step():
    return _step(True)


def make_step_fixed():
    return _step(False)
