"""What is owed by millions of accounts shrinks a little each day."""

import torch

TRUTH = {"regime": ("memory",), "remedy": None}


def _step():
    torch.manual_seed(0)
    owed = torch.rand(40_000_000)

    @torch.no_grad()
    def step():
        owed.mul_(0.9999)
        return owed[:10].clone()

    return step


make_step = make_step_fixed = _step
