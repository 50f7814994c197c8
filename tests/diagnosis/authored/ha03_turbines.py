"""Trains a wide network on readings of turbines for three targets; an averaged copy is kept for the service."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {"healthy": True}

TARGETS = ("power", "load", "wear")


class Turbine(nn.Module):
    def __init__(self, readings=256, width=640):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(readings, width), nn.ReLU(inplace=True),
            nn.Linear(width, width), nn.ReLU(inplace=True),
            nn.Linear(width, width), nn.ReLU(inplace=True))
        self.heads = nn.ModuleDict({name: nn.Linear(width, 1) for name in TARGETS})

    def forward(self, x):
        h = self.trunk(x)
        return {name: head(h).squeeze(1) for name, head in self.heads.items()}


class Trainer:
    def __init__(self, decay=0.999):
        torch.manual_seed(81)
        self.model = Turbine()
        self.service = copy.deepcopy(self.model).requires_grad_(False)
        self.mine, self.theirs = list(self.service.parameters()), list(self.model.parameters())
        self.opt = torch.optim.AdamW(self.theirs, lr=3e-4, fused=True)
        self.decay = decay
        self.g = torch.Generator().manual_seed(82)

    @torch.no_grad()
    def follow(self):
        torch._foreach_lerp_(self.mine, self.theirs, 1 - self.decay)

    def step(self):
        x = torch.randn(1536, 256, generator=self.g)
        wanted = dict(zip(TARGETS, (x[:, 0], x[:, 1] + x[:, 2], x[:, 3].abs())))
        out = self.model(x)
        losses = [F.mse_loss(out[name], wanted[name]) for name in TARGETS]
        self.opt.zero_grad()
        torch.stack(losses).sum().backward()
        self.opt.step()
        self.follow()
        return torch.stack(losses).detach()


def make_step():
    return Trainer().step
