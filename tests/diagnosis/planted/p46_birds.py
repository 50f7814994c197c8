"""Listens for birds: spectrograms on a mel scale, then a small network."""

import math

import torch
from torch import nn

TRUTH = {"regime": ("compute", "memory", "overhead"), "remedy": "constant-work"}


def mel_filters(bands=128, bins=4097, rate=32_000):
    top = 2595 * math.log10(1 + rate / 2 / 700)
    edges = 700 * (10 ** (torch.linspace(0, top, bands + 2, dtype=torch.float64) / 2595) - 1)
    places = torch.linspace(0, rate / 2, bins, dtype=torch.float64)
    rising = (places - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - places) / (edges[2:] - edges[1:-1])[:, None]
    return torch.minimum(rising, falling).clamp(min=0).float()


class Listener(nn.Module):
    def __init__(self, kept):
        super().__init__()
        self.kept = mel_filters() if kept else None
        self.head = nn.Sequential(nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, sound):
        frames = sound.unfold(-1, 8192, 4096) * torch.hann_window(8192)
        power = torch.fft.rfft(frames).abs().square()
        mel = torch.log(power @ (mel_filters() if self.kept is None else self.kept).T + 1e-6)
        return self.head(mel.mean(1))


def _step(kept):
    torch.manual_seed(0)
    model, sounds = Listener(kept).eval(), torch.randn(4, 16384)
    return torch.inference_mode()(lambda: model(sounds))


def make_step():
    return _step(kept=False)


def make_step_fixed():
    return _step(kept=True)
