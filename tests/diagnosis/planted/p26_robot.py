"""Inverse dynamics of a robot arm, learned from recorded joints that were kept as arrays."""

import numpy as np
import torch
from torch import nn

TRUTH = {"regime": ("compute", "memory"), "remedy": "float64"}


def recordings():
    generator = np.random.default_rng(0)
    joints = generator.normal(size=(512, 21))
    return joints, np.tanh(joints[:, :7] * 2.0)


def _step(dtype):
    torch.manual_seed(0)
    joints, torques = (torch.from_numpy(each).to(dtype) for each in recordings())
    model = nn.Sequential(
        nn.Linear(21, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 7)
    )
    model = model.to(joints.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step():
        loss = (model(joints) - torques).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def make_step():
    return _step(None)


def make_step_fixed():
    return _step(torch.float32)
