"""A camera inspects parts on a belt; the pictures of a tray are judged together at its end."""

import torch
from torch import nn

TRUTH = {"regime": ("overhead", "latency"), "remedy": ("bigger-batch", "vectorise")}


class Judge(nn.Module):
    def __init__(self):
        super().__init__()
        self.see = nn.Sequential(
            nn.Flatten(1), nn.Linear(144, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.LayerNorm(64)
        )
        self.say = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 3))

    def forward(self, pictures):
        return self.say(self.see(pictures - pictures.mean((1, 2), keepdim=True))).softmax(-1)


def _step(at_a_time):
    torch.manual_seed(0)
    judge, tray = Judge().eval(), torch.randn(128, 12, 12)

    @torch.inference_mode()
    def step():
        return torch.cat([judge(pictures) for pictures in tray.split(at_a_time)])

    return step


def make_step():
    return _step(1)


def make_step_fixed():
    return _step(16)
