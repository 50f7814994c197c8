"""Samples sprites from a conditional diffusion model with classifier-free guidance at the trained scale."""
import torch
from torch import nn

TRUTH = {
    "cause": "With a guidance scale of 1 the unconditional prediction is multiplied by zero: half of the network's work is for nothing.",
    "lines": ["empty = self.net(x, level, self.null.expand_as(label))", "return empty + scale * (cond - empty)",
              "eps = self.predict(x, level, label, self.scale)", "scale=1.0"],
    "says": ["guidance", "uncondition", r"\bempty\b", "(second|two|twice|double).*(forward|pass|call|evaluation)", "multiplied by (zero|0)", "cancel",
             "(result|output).*(no effect|not (used|matter))", "scale (is|of|=+) ?1"],
    "remedy": ["skip", "only the cond", "only .*(when|if|where) .*scale", "leave out", "scale (is|==|!=|of) ?1", "drop the", "do not (run|compute)",
               "without guidance", "guard", "avoid .*uncondition", "remove"],
}


class Denoiser(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.inp = nn.Conv2d(3, width, 3, padding=1)
        self.mid = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(3))
        self.out = nn.Conv2d(width, 3, 3, padding=1)
        self.level = nn.Linear(1, width)

    def forward(self, x, level, label):
        h = self.inp(x)
        shift = (self.level(level) + label)[:, :, None, None]
        for conv in self.mid:
            h = h + conv(torch.nn.functional.silu(h + shift))
        return self.out(torch.nn.functional.silu(h))


class Sampler:
    def __init__(self, steps=4, scale=1.0, lazy=False):
        torch.manual_seed(0)
        self.net = Denoiser().eval()
        self.names = nn.Embedding(10, 48)
        self.null = torch.zeros(1, 48)
        self.levels = torch.linspace(1, 0.05, steps)
        self.scale, self.lazy = scale, lazy
        self.noise = torch.randn(8, 3, 24, 24)

    def predict(self, x, level, label, scale):
        cond = self.net(x, level, label)
        if self.lazy and scale == 1.0:
            return cond
        empty = self.net(x, level, self.null.expand_as(label))
        return empty + scale * (cond - empty)

    @torch.inference_mode()
    def sample(self):
        x = self.noise
        label = self.names(torch.arange(8) % 10)
        for value in self.levels:
            level = value.expand(8, 1)
            eps = self.predict(x, level, label, self.scale)
            x = x - 0.2 * value * eps
        return x


def make_step():
    return Sampler().sample


def make_step_fixed():
    return Sampler(lazy=True).sample
