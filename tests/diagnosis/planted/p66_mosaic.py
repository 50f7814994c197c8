"""Matches small tiles to a large picture with a network of depthwise filters."""

import torch
from torch import nn

TRUTH = {"regime": ("memory", "compute", "kernels"), "remedy": "channels-last"}


def network(width=48, depth=5):
    layers = [nn.Conv2d(3, width, 3, 2, 1)]
    for _ in range(depth):
        layers += [
            nn.Conv2d(width, width, 3, 1, 1, groups=width),
            nn.BatchNorm2d(width),
            nn.Hardswish(),
            nn.MaxPool2d(3, 1, 1),
        ]
        layers += [nn.Conv2d(width, width, 1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()


def _step(layout):
    torch.manual_seed(0)
    model, tiles = network().to(memory_format=layout), torch.randn(4, 3, 64, 64).contiguous(memory_format=layout)
    return torch.inference_mode()(lambda: model(tiles))


def make_step():
    return _step(torch.contiguous_format)


def make_step_fixed():
    return _step(torch.channels_last)
