"""Averages what customers bought into a profile for each of them."""

import torch
from torch import nn

TRUTH = {"regime": ("memory", "overhead"), "remedy": ("scan", "vectorise")}


def profiles(features, customers, count):
    rows = []
    for i in range(count):
        mine = customers == i
        rows.append((features * mine.unsqueeze(1)).sum(0) / mine.sum().clamp(min=1))
    return torch.stack(rows)


def profiles_added(features, customers, count):
    sums = torch.zeros(count, features.shape[1]).index_add_(0, customers, features)
    return sums / torch.bincount(customers, minlength=count).clamp(min=1).unsqueeze(1)


def _step(average):
    torch.manual_seed(0)
    bought, customers = torch.randint(0, 500, (20_000,)), torch.randint(0, 60, (20_000,))
    items, head = nn.Embedding(500, 16), nn.Linear(16, 4)

    @torch.inference_mode()
    def step():
        return head(average(items(bought), customers, 60)).softmax(-1)

    return step


def make_step():
    return _step(profiles)


def make_step_fixed():
    return _step(profiles_added)
