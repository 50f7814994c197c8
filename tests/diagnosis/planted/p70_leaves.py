"""Tells leaves apart; pictures are ready when the network asks for them."""

import torch
from torch import nn

TRUTH = {"regime": ("compute",), "remedy": None}


def _step():
    torch.manual_seed(0)
    layers = [nn.Conv2d(64, 64, 3, padding=1)]
    for _ in range(3):
        layers += [nn.ReLU(inplace=True), nn.Conv2d(64, 64, 3, padding=1)]
    model = nn.Sequential(*layers).eval().to(memory_format=torch.channels_last)
    pictures = torch.randn(8, 64, 40, 40).contiguous(memory_format=torch.channels_last)

    @torch.inference_mode()
    def step():
        return model(pictures).mean((2, 3))

    return step


make_step = make_step_fixed = _step
