"""A new head is trained on a backbone that stays as it was loaded."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {"regime": ("compute", "memory"), "remedy": "unused-gradients"}


class Backbone(nn.Module):
    def __init__(self, widths=(3, 16, 32, 64)):
        super().__init__()
        pairs = zip(widths, widths[1:], strict=False)
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.ReLU(), nn.Conv2d(b, b, 3, 1, 1), nn.ReLU()) for a, b in pairs
        )

    def forward(self, x):
        for stage in self.stages:
            x = stage(x)
        return x.mean((2, 3))


def _step(frozen):
    torch.manual_seed(0)
    backbone, head = Backbone(), nn.Linear(64, 17)
    backbone.requires_grad_(not frozen)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    images, flowers = torch.randn(8, 3, 64, 64), torch.randint(0, 17, (8,))

    def step():
        loss = F.cross_entropy(head(backbone(images)), flowers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def make_step():
    return _step(frozen=False)


def make_step_fixed():
    return _step(frozen=True)
