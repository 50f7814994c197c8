"""A map of populations, each grown by a year; compiled."""

import torch

TRUTH = {"regime": ("memory", "compute"), "remedy": None}


@torch.compile
def grow(people):
    births = 1.9 * people * (1 - people)
    harvest = 0.05 * people / (1 + people)
    people.copy_((births - harvest + 0.01).clamp(0, 1))


def _step():
    torch.manual_seed(0)
    people = torch.rand(24_000_000)

    @torch.no_grad()
    def step():
        grow(people)
        return people[:10].clone()

    return step


make_step = make_step_fixed = _step
