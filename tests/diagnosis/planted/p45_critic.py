"""A trained critic rates small images; its layers were made smooth for training."""

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import spectral_norm

TRUTH = {"regime": ("compute", "memory", "overhead", "latency"), "remedy": "constant-work"}


def critic():
    torch.manual_seed(0)
    layers = [nn.Linear(192, 1024), nn.Linear(1024, 1024), nn.Linear(1024, 1024), nn.Linear(1024, 1)]
    model = nn.Sequential(nn.Flatten())
    for layer in layers:
        model.extend([spectral_norm(layer, n_power_iterations=2), nn.LeakyReLU(0.2)])
    return model.eval().requires_grad_(False)


def _step(model):
    images = torch.randn(2, 3, 8, 8)

    @torch.inference_mode()
    def step():
        return model(images).squeeze(-1)

    return step


def make_step():
    return _step(critic())


def make_step_fixed():
    model = critic()
    for module in model:
        if parametrize.is_parametrized(module):
            parametrize.remove_parametrizations(module, "weight")
    return _step(model)
