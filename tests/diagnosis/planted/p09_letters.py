"""Handwritten letters are jittered for training; a step is a pass over a few batches."""

import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRUTH = {"regime": ("idle", "overhead"), "remedy": "loader"}


class Letters(Dataset):
    def __init__(self, jitter, count=64):
        generator = torch.Generator().manual_seed(1)
        self.images, self.jitter = torch.rand(count, 24, 24, generator=generator), jitter

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        dice = random.Random(i)
        return self.jitter(self.images[i], dice.randint(-2, 2), dice.uniform(0.8, 1.2)), i % 26


def pixel_by_pixel(image, shift, gain):
    rows = image.tolist()
    moved = []
    for row in rows:
        moved.append([min(1.0, row[(column - shift) % len(row)] * gain) for column in range(len(row))])
    return torch.tensor(moved).unsqueeze(0)


def at_once(image, shift, gain):
    return (image.roll(shift, 1) * gain).clamp(max=1.0).unsqueeze(0)


def _step(jitter):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(576, 48), nn.ReLU(), nn.Linear(48, 26))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(Letters(jitter), batch_size=16)

    def train():
        for image, letter in loader:
            loss = F.cross_entropy(model(image), letter)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.detach()

    return train


def make_step():
    return _step(pixel_by_pixel)


def make_step_fixed():
    return _step(at_once)
