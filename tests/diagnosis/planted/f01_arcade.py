"""Q-learning on frames of an arcade game, drawn from a data set of transitions."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

TRUTH = {"regime": ("idle", "overhead"), "remedy": ("loader",)}


class Transitions(Dataset):
    def __init__(self, count=512):
        random = np.random.default_rng(0)
        self.frames = random.random((count, 4, 42, 42), dtype=np.float32)
        self.actions = random.integers(0, 6, count)
        self.returns = random.random(count, dtype=np.float32)

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, index):
        return self.frames[index], self.actions[index], self.returns[index]


def collate(items):
    frames, actions, returns = zip(*items)
    return (
        torch.tensor(frames),
        torch.tensor(actions),
        torch.tensor(returns, dtype=torch.float32),
    )


def collate_stacked(items):
    frames, actions, returns = zip(*items)
    return (
        torch.from_numpy(np.stack(frames)),
        torch.from_numpy(np.array(actions)),
        torch.from_numpy(np.array(returns)),
    )


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, 16, 6, stride=3),
            nn.ReLU(),
            nn.Conv2d(16, 32, 4, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 5 * 5, 128),
            nn.ReLU(),
            nn.Linear(128, 6),
        )

    def forward(self, frames):
        return self.body(frames)


def forever(loader):
    while True:
        yield from loader


def _step(collate_fn):
    torch.manual_seed(0)
    model = Critic()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, foreach=True)
    order = torch.Generator().manual_seed(1)
    batches = forever(DataLoader(Transitions(), 32, shuffle=True, generator=order, collate_fn=collate_fn))

    def step():
        frames, actions, returns = next(batches)
        loss = F.smooth_l1_loss(model(frames).gather(1, actions[:, None]).squeeze(1), returns)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def make_step():
    return _step(collate)


def make_step_fixed():
    return _step(collate_stacked)
