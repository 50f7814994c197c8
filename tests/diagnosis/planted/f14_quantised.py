"""Answers with a perceptron whose weights are kept in eight bits."""

import torch
from torch import nn

TRUTH = {"regime": ("memory",), "remedy": ("constant-work",)}


class Linear8(nn.Module):
    def __init__(self, linear):
        super().__init__()
        weight = linear.weight.detach()
        self.register_buffer("scale", weight.abs().amax(1, keepdim=True) / 127)
        self.register_buffer("weight", (weight / self.scale).round().to(torch.int8))
        self.register_buffer("bias", linear.bias.detach())

    def dequantised(self):
        return self.weight.to(self.scale.dtype) * self.scale

    def forward(self, x):
        return nn.functional.linear(x, self.dequantised(), self.bias)


class Linear8Kept(Linear8):
    def __init__(self, linear):
        super().__init__(linear)
        self.register_buffer("ready", super().dequantised(), persistent=False)

    def dequantised(self):
        return self.ready


def quantise(model, kind):
    for name, child in model.named_children():
        if isinstance(child, nn.Linear):
            setattr(model, name, kind(child))
        else:
            quantise(child, kind)
    return model


class Mixer(nn.Module):
    def __init__(self, width=768):
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.narrow(nn.functional.gelu(self.wide(self.norm(x))))


def _step(kind):
    torch.manual_seed(0)
    model = quantise(nn.Sequential(Mixer(), Mixer(), Mixer()), kind).eval()
    asked = torch.randn(24, 768)

    @torch.inference_mode()
    def step():
        return model(asked)

    return step


def make_step():
    return _step(Linear8)


def make_step_fixed():
    return _step(Linear8Kept)
