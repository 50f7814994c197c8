"""Places goods on the floor plan of a warehouse with a wide filter."""

import torch
from torch import nn

TRUTH = {"regime": ("compute",), "remedy": None}


def _step():
    torch.manual_seed(0)
    model, goods = nn.Conv2d(96, 96, 5, padding=2).eval(), torch.randn(4, 96, 36, 36)
    model, goods = (each.to(memory_format=torch.channels_last) for each in (model, goods))
    return torch.inference_mode()(lambda: model(goods))


make_step = make_step_fixed = _step
