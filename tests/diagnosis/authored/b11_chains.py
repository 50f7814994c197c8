"""Bayesian dose-response model: many Markov chains walk over its coefficients by random-walk Metropolis."""
import torch

TRUTH = {
    "cause": "The log density of the state a chain is in is computed anew at each move, though it was computed when that state was proposed.",
    "lines": ["ratio = self.log_density(proposal) - self.log_density(state)", "def log_density(self, beta):", "state = self.move(state"],
    "says": ["log_density", "density", "repeat", "recomput", "twice", "same (operands|input|state)", "already (known|computed)", "second evaluation", "redundant", "current state"],
    "remedy": ["keep", "cache", "carry", "store", "reuse", "re-use", "remember", "only the proposal", r"torch\.where", "once"],
}


class Sampler:
    def __init__(self, chains=48, scale=0.03):
        gen = torch.Generator().manual_seed(0)
        self.x = torch.randn(4000, 24, generator=gen)
        truth = torch.randn(24, generator=gen)
        self.y = (torch.rand(4000, generator=gen) < torch.sigmoid(self.x @ truth)).float()
        self.start = truth + 0.1 * torch.randn(chains, 24, generator=gen)
        self.scale = scale

    def log_density(self, beta):
        logits = beta @ self.x.t()
        fit = (self.y * logits - torch.nn.functional.softplus(logits)).sum(1)
        return fit - 0.5 * beta.square().sum(1)

    def move(self, state, gen):
        proposal = state + self.scale * torch.randn(state.shape, generator=gen)
        ratio = self.log_density(proposal) - self.log_density(state)
        accept = torch.rand(len(state), generator=gen).log() < ratio
        return torch.where(accept[:, None], proposal, state)

    def run(self, moves=24):
        gen = torch.Generator().manual_seed(1)
        state, total = self.start, torch.zeros_like(self.start)
        for _ in range(moves):
            state = self.move(state, gen)
            total += state
        return total / moves


class CarryingSampler(Sampler):
    def run(self, moves=24):
        gen = torch.Generator().manual_seed(1)
        now, total = self.start, torch.zeros_like(self.start)
        value = self.log_density(now)
        for _ in range(moves):
            other = now + self.scale * torch.randn(now.shape, generator=gen)
            new = self.log_density(other)
            accept = torch.rand(len(now), generator=gen).log() < new - value
            now = torch.where(accept[:, None], other, now)
            value = torch.where(accept, new, value)
            total += now
        return total / moves


def make_step():
    return Sampler().run


def make_step_fixed():
    return CarryingSampler().run
