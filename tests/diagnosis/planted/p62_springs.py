"""Springs on a ring under a compiled solver that reports on itself."""

import numpy as np
import torch

TRUTH = {"regime": ("overhead", "memory"), "remedy": "graph-breaks"}


class Watch:
    def __init__(self):
        self.energies = []

    @torch.compiler.disable
    def note(self, energy):
        self.energies.append(np.float32(energy))


def relax(x, v, stiffness, note):
    for _ in range(10):
        left, right = x.roll(1, -1), x.roll(-1, -1)
        force = stiffness * (left - 2 * x + right) - 0.1 * torch.sin(x) * x.abs()
        v = 0.99 * v + 0.05 * force
        x = x + 0.05 * v
        note((v * v).mean())
    return x, v


def relax_noted(x, v, stiffness):
    energies = []
    x, v = relax(x, v, stiffness, energies.append)
    return x, v, torch.stack(energies)


def _step(whole):
    torch.manual_seed(0)
    x, v, stiffness = torch.randn(3, 8, 64)
    loud, quiet = torch.compile(relax), torch.compile(relax_noted)

    @torch.no_grad()
    def step():
        a, b = x, v
        for _ in range(10):
            if whole:
                a, b, energies = quiet(a, b, stiffness)
            else:
                watch = Watch()
                a, b = loud(a, b, stiffness, watch.note)
                energies = torch.tensor(np.stack(watch.energies))
        return a, b, energies

    return step


def make_step():
    return _step(whole=False)


def make_step_fixed():
    return _step(whole=True)
