"""Street scenes come from a slow disk, one file an image; a step is an epoch of a small segmenter."""

import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRUTH = {"regime": ("idle",), "remedy": "loader"}


class Scenes(Dataset):
    def __init__(self, count=24):
        self.images, self.masks = torch.rand(count, 3, 32, 32), torch.randint(0, 4, (count, 32, 32))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        time.sleep(0.004)  # the disk
        return self.images[i], self.masks[i]


def _step(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(Scenes(), batch_size=4, **options)

    def epoch():
        losses = []
        for image, mask in loader:
            loss = F.cross_entropy(model(image), mask)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses)

    return epoch


def make_step():
    return _step()


def make_step_fixed():
    return _step(num_workers=4, persistent_workers=True, prefetch_factor=3, multiprocessing_context="fork")
