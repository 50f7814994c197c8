"""A network with helpers for training watches traffic; here it only runs."""

import torch
from torch import nn

TRUTH = {"regime": ("compute", "memory"), "remedy": "unread"}


class Watcher(nn.Module):
    def __init__(self, width=32, helpers=True):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(width, width, 3, 2, 1), nn.ReLU())
        self.head = nn.Linear(width, 6)
        self.depth = nn.Sequential(nn.Conv2d(width, width, 3, 1, 1), nn.ReLU(), nn.Conv2d(width, 1, 1))
        self.edges = nn.Sequential(nn.Conv2d(width, width, 3, 1, 1), nn.ReLU(), nn.Conv2d(width, 4, 1))
        self.helpers = helpers

    def forward(self, image):
        early = self.first(image)
        late = self.second(early)
        found = {"cars": self.head(late.mean((2, 3)))}
        if self.helpers:
            found |= {"depth": self.depth(early).sigmoid(), "edges": self.edges(early).softmax(1)}
        return found


def _step(**options):
    torch.manual_seed(0)
    model, images = Watcher(**options).eval(), torch.randn(4, 3, 64, 64)

    @torch.inference_mode()
    def step():
        return model(images)["cars"].softmax(-1)

    return step


def make_step():
    return _step()


def make_step_fixed():
    return _step(helpers=False)
