"""Trains one trunk with a head for each of seven signals that a driver gives (turn, brake, ...)."""
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "cause": "Each task's loss is sent backward on its own with retain_graph=True, so the shared trunk's backward runs once per task; the sum of losses needs a single backward.",
    "lines": ["loss.backward(retain_graph=True)", "for loss in losses:", "self.accumulate(losses)", "features = self.trunk(frames)"],
    "says": ["backward", "retain_graph", "gradient", "per (task|loss|head)", "trunk", "convolution_backward", "repeat"],
    "remedy": ["sum", "one backward|single backward|once", "add(ing|ed)? (up )?the losses", "total loss", "torch\\.autograd\\.backward", "together", "detach"],
}

TASKS = 7


class Driver(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, 12, 5, stride=2, padding=2), nn.BatchNorm2d(12), nn.ReLU(),
            nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
            nn.Conv2d(24, 32, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.heads = nn.ModuleList([nn.Linear(128, 3) for _ in range(TASKS)])

    def forward(self, frames):
        features = self.trunk(frames)
        return [head(features) for head in self.heads]


class Trainer:
    def __init__(self):
        torch.manual_seed(13)
        self.model = Driver()
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.9)
        self.g = torch.Generator().manual_seed(14)

    def accumulate(self, losses):
        for loss in losses:
            loss.backward(retain_graph=True)

    def step(self):
        frames = torch.rand(12, 3, 64, 64, generator=self.g)
        signals = torch.randint(0, 3, (TASKS, 12), generator=self.g)
        self.opt.zero_grad()
        losses = [F.cross_entropy(out, want) for out, want in zip(self.model(frames), signals)]
        self.accumulate(losses)
        self.opt.step()
        return torch.stack(losses).detach()


class TrainerFixed(Trainer):
    def accumulate(self, losses):
        torch.stack(losses).sum().backward()


def make_step():
    return Trainer().step


def make_step_fixed():
    return TrainerFixed().step
