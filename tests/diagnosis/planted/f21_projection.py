"""Projects a large batch through wide layers: little but big products."""

import torch
from torch import nn

TRUTH = {"regime": ("compute",), "remedy": None}


def make_step():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(inplace=True), nn.Linear(1024, 1024)).eval()
    x = torch.randn(1024, 1024)

    @torch.inference_mode()
    def step():
        return model(x)

    return step


make_step_fixed = make_step
