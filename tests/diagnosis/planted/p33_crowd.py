"""Counts people: a head proposes boxes, and what overlaps a better one is dropped."""

import torch
from torch import nn

TRUTH = {"regime": ("overhead",), "remedy": ("vectorise", "sync")}


def overlap(a, b):
    low, high = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    both = (high - low).clamp(min=0).prod(-1)
    return both / ((a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - both)


def keep_best(boxes, limit=0.3):
    kept = []
    for i in range(len(boxes)):
        good = True
        for j in kept:
            if overlap(boxes[i], boxes[j]) > limit:
                good = False
                break
        if good:
            kept.append(i)
    return torch.tensor(kept)


def keep_best_by_table(boxes, limit=0.3):
    table = (overlap(boxes.unsqueeze(1), boxes) > limit).numpy()
    kept = []
    for i in range(len(boxes)):
        if not table[i, kept].any():
            kept.append(i)
    return torch.tensor(kept)


def _step(keep):
    torch.manual_seed(0)
    head, features = nn.Linear(32, 5), torch.randn(36, 32)
    cells = torch.stack(torch.meshgrid(torch.arange(6.0), torch.arange(6.0), indexing="ij"), -1).view(-1, 2)

    @torch.no_grad()
    def step():
        out = head(features)
        centre, size = cells + out[:, :2].tanh() * 2, out[:, 2:4].exp() + 0.5
        boxes = torch.cat([centre - size, centre + size], -1)[out[:, 4].argsort(descending=True)]
        return keep(boxes)

    return step


def make_step():
    return _step(keep_best)


def make_step_fixed():
    return _step(keep_best_by_table)
