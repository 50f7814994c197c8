"""Moves the average of all weights, kept as one flat vector, towards the weights: one pass in place."""

import torch

TRUTH = {"regime": ("memory",), "remedy": None}


def make_step():
    torch.manual_seed(0)
    average, weights = torch.randn(24_000_000), torch.randn(24_000_000)

    @torch.inference_mode()
    def step():
        return average.lerp_(weights, 0.001)

    return step


make_step_fixed = make_step
