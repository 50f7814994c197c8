"""Sensor readings are smoothed before a network marks the odd ones."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {"regime": ("overhead",), "remedy": ("host-code", "vectorise")}


def smooth(signal, width=16):
    values, out, window = signal.tolist(), [], []
    for value in values:
        window.append(value)
        if len(window) > width:
            window.pop(0)
        out.append(sum(window) / len(window))
    return torch.tensor(out)


def smooth_at_once(signal, width=16):
    sums = F.pad(signal.double().cumsum(0), (width, 0))
    count = torch.arange(1, len(signal) + 1).clamp(max=width)
    return ((sums[width:] - sums[:-width]) / count).float()


def _step(smoother):
    torch.manual_seed(0)
    signals = torch.randn(6, 4000)
    model = nn.Sequential(nn.Conv1d(1, 16, 9, padding=4), nn.ReLU(), nn.Conv1d(16, 1, 9, padding=4))

    @torch.no_grad()
    def step():
        clean = torch.stack([smoother(signal) for signal in signals])
        return model(clean.unsqueeze(1)).sigmoid()

    return step


def make_step():
    return _step(smooth)


def make_step_fixed():
    return _step(smooth_at_once)
