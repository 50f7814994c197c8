"""Convolutions of many channels over maps in channels-last order."""

import torch
from torch import nn

TRUTH = {"regime": ("compute",), "remedy": None}


def make_step():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(128, 256, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(256, 128, 3, padding=1))
    model = model.eval().to(memory_format=torch.channels_last)
    maps = torch.randn(4, 128, 28, 28).to(memory_format=torch.channels_last)

    @torch.inference_mode()
    def step():
        return model(maps)

    return step


make_step_fixed = make_step
