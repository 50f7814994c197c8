"""Trains a denoiser of point clouds' codes, with a moving average of its weights for sampling."""

import copy

import torch
from torch import nn

TRUTH = {"regime": ("overhead", "latency"), "remedy": ("vectorise",)}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.time = nn.Linear(16, width)
        self.inner, self.outer = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x, time):
        return x + self.outer(nn.functional.silu(self.inner(self.norm(x)) + self.time(time)))


class Denoiser(nn.Module):
    def __init__(self, width=48, depth=16):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, x, time):
        angles = time[:, None] * torch.arange(8) * 0.7
        time = torch.cat([angles.sin(), angles.cos()], -1)
        for block in self.blocks:
            x = block(x, time)
        return x


class Average:
    """Exponential moving average of a model's state."""

    def __init__(self, model, decay=0.999):
        self.shadow, self.decay = copy.deepcopy(model).requires_grad_(False), decay

    @torch.no_grad()
    def update(self, model):
        fresh = model.state_dict()
        for name, kept in self.shadow.state_dict().items():
            kept.copy_(kept * self.decay + fresh[name] * (1 - self.decay))


class AverageOfLists(Average):
    def __init__(self, model, decay=0.999):
        super().__init__(model, decay)
        self.kept, self.fresh = list(self.shadow.parameters()), list(model.parameters())

    @torch.no_grad()
    def update(self, model):
        torch._foreach_lerp_(self.kept, self.fresh, 1 - self.decay)


def _step(average):
    torch.manual_seed(0)
    model = Denoiser()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    average = average(model)
    clean, noise, time = torch.randn(16, 48), torch.randn(16, 48), torch.rand(16)

    def step():
        noised = clean + noise * time[:, None]
        loss = nn.functional.mse_loss(model(noised, time), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(model)
        return average.shadow.blocks[3].inner.weight.clone()

    return step


def make_step():
    return _step(Average)


def make_step_fixed():
    return _step(AverageOfLists)
