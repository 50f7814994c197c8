"""A classifier of chest images, loaded with the weights of its training run."""

import torch
from torch import nn

TRUTH = {"regime": ("compute",), "remedy": "half-on-cpu"}


def classifier():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 1, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 14),
    ).half().eval()  # fmt: skip


def _step(dtype):
    model, images = classifier().to(dtype), torch.randn(2, 1, 64, 64)

    @torch.inference_mode()
    def step():
        return model(images.half().to(dtype)).float().sigmoid()

    return step


def make_step():
    return _step(torch.float16)


def make_step_fixed():
    return _step(torch.float32)
