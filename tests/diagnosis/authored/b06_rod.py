"""Heat in a rod of layered materials, stepped with an implicit (backward Euler) scheme."""
import torch

TRUTH = {
    "cause": "The same matrix is factorised anew by linalg.solve in every time step; it should be factorised once and only the substitution repeated.",
    "lines": ["return torch.linalg.solve(self.system, right)", "temperature = self.advance(temperature + self.dt * heat)"],
    "says": ["solve", "factori[sz]", r"\blu\b", "decompos", "same (matrix|operand|system)", "repeat", "constant", "unchanged", "invert"],
    "remedy": ["factori[sz]e", r"lu_factor|lu_solve|cholesky", "once", "precompute", "cache", "reuse|re-use", "outside (of )?the loop", "hoist", "inverse", "tridiagonal|banded"],
}


class Rod:
    def __init__(self, cells=320, dt=0.1):
        gen = torch.Generator().manual_seed(0)
        conduct = 100 + 200 * torch.rand(cells + 1, generator=gen, dtype=torch.float64)
        laplace = torch.diag(-(conduct[:-1] + conduct[1:]))
        laplace += torch.diag(conduct[1:-1], 1) + torch.diag(conduct[1:-1], -1)
        self.system = torch.eye(cells, dtype=torch.float64) - dt * laplace
        self.dt, self.cells = dt, cells
        self.lamps = torch.rand(cells, 3, generator=gen, dtype=torch.float64)

    def advance(self, right):
        return torch.linalg.solve(self.system, right)

    def simulate(self, steps=12):
        temperature = torch.zeros(self.cells, 3, dtype=torch.float64)
        history = []
        for step in range(steps):
            heat = self.lamps * (1.0 + 0.5 * (step % 4))
            temperature = self.advance(temperature + self.dt * heat)
            history.append(temperature.amax(0))
        return temperature, torch.stack(history)


class FactorisedRod(Rod):
    def simulate(self, steps=12):
        self.factors = torch.linalg.lu_factor(self.system)
        return super().simulate(steps)

    def advance(self, right):
        return torch.linalg.lu_solve(*self.factors, right)


def make_step():
    return Rod().simulate


def make_step_fixed():
    return FactorisedRod().simulate
