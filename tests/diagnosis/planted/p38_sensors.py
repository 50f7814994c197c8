"""Every sensor of a plant has its own small calibration network."""

import torch
from torch import nn

TRUTH = {"regime": ("overhead", "latency"), "remedy": ("batch-products", "vectorise")}


def calibrate_each(networks, readings):
    return torch.stack([network(reading) for network, reading in zip(networks, readings, strict=True)])


def calibrate_all(networks, readings):
    x = readings
    for i, part in enumerate(networks[0]):
        if isinstance(part, nn.Linear):
            weights = torch.stack([network[i].weight for network in networks]).transpose(1, 2)
            x = torch.baddbmm(torch.stack([network[i].bias for network in networks]).unsqueeze(1), x, weights)
        else:
            x = part(x)
    return x


def _step(calibrate):
    torch.manual_seed(0)
    networks = nn.ModuleList(
        nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1)) for _ in range(150)
    ).eval()
    readings = torch.randn(150, 16, 6)
    return torch.no_grad()(lambda: calibrate(networks, readings).squeeze(-1).mean(1))


def make_step():
    return _step(calibrate_each)


def make_step_fixed():
    return _step(calibrate_all)
