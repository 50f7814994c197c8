"""Compares textures by what a network sees in two of its layers."""

import torch
from torch import nn

TRUTH = {"regime": ("memory", "compute"), "remedy": ("unread", "copies")}


class Extractor:
    def __init__(self, model, wanted):
        self.kept = {}
        for name, module in model.named_modules():
            if not list(module.children()) and (wanted is None or name in wanted):
                module.register_forward_hook(lambda module, args, out, name=name: self.keep(name, out))

    def keep(self, name, out):
        self.kept[name] = out.detach().clone().permute(0, 2, 3, 1).contiguous().double()


def network(width=16):
    layers = [nn.Conv2d(3, width, 1), nn.ReLU()]
    for _ in range(6):
        layers += [nn.Conv2d(width, width, 3, padding=1, groups=width), nn.ReLU(), nn.BatchNorm2d(width)]
    return nn.Sequential(*layers).eval()


def _step(wanted):
    torch.manual_seed(0)
    model, images = network(), torch.randn(2, 3, 96, 96)
    extractor = Extractor(model, wanted)

    @torch.no_grad()
    def step():
        model(images)
        first, second = (extractor.kept[name].flatten(1, 2).mean(1) for name in ("4", "19"))
        return (first[0] - first[1]).square().mean(), (second[0] - second[1]).square().mean()

    return step


def make_step():
    return _step(None)


def make_step_fixed():
    return _step(("4", "19"))
