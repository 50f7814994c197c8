"""Trains a small decoder on summaries, with the settings of its big sister."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

TRUTH = {"regime": ("compute",), "remedy": ("checkpointing",)}


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.parts, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.parts(self.norms[0](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(*parts.unbind(), is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.norms[1](x))


class Decoder(nn.Module):
    def __init__(self, save_memory, width=192, depth=4):
        super().__init__()
        self.save_memory, self.words = save_memory, nn.Embedding(300, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(depth))
        self.head = nn.Linear(width, 300)

    def run(self, block, x):
        return checkpoint(block, x, use_reentrant=False) if self.save_memory and self.training else block(x)

    def forward(self, words):
        x = self.words(words)
        for block in self.blocks:
            x = self.run(block, x)
        return self.head(x)


def _step(save_memory):
    torch.manual_seed(0)
    model = Decoder(save_memory)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    words = torch.randint(0, 300, (4, 129))

    def step():
        loss = F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def make_step():
    return _step(True)


def make_step_fixed():
    return _step(False)
