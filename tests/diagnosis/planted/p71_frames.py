"""Rotates the coordinates of many large sets, each by a matrix of its own."""

import torch

TRUTH = {"regime": ("compute",), "remedy": None}


def _step():
    torch.manual_seed(0)
    sets, turns = torch.randn(3, 768, 768), torch.randn(3, 768, 768)
    return torch.inference_mode()(lambda: torch.bmm(sets, turns))


make_step = make_step_fixed = _step
