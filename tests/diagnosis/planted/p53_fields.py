"""Segments satellite images of fields with a residual network."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

TRUTH = {"regime": ("compute", "memory"), "remedy": "checkpointing"}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)
        )

    def forward(self, x):
        return torch.relu(x + self.inner(x))


class Segmenter(nn.Module):
    def __init__(self, save_memory, width=24, depth=5):
        super().__init__()
        self.enter, self.leave = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 1)
        self.blocks, self.save_memory = nn.ModuleList(Block(width) for _ in range(depth)), save_memory

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.save_memory else block(x)
        return self.leave(x)


def _step(save_memory):
    torch.manual_seed(0)
    model = Segmenter(save_memory)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, fields = torch.randn(2, 3, 32, 32), torch.randint(0, 3, (2, 32, 32))

    def step():
        loss = nn.functional.cross_entropy(model(images), fields)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def make_step():
    return _step(save_memory=True)


def make_step_fixed():
    return _step(save_memory=False)
