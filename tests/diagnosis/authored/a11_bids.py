"""Policy gradient for an agent that sets bids in 32 auctions at once; one clipped update per step."""
import torch
import torch.nn as nn
from torch.distributions import Independent, MultivariateNormal, Normal

TRUTH = {
    "cause": "The policy's covariance is diagonal but is given as a full matrix to MultivariateNormal: a Cholesky factor and triangular solves per sample; independent normals give the same.",
    "lines": ["MultivariateNormal(mean, torch.diag_embed(spread.square()))", "policy = self.actor(states)",
              "logp = policy.log_prob(bids)", "entropy = policy.entropy().mean()"],
    "says": ["MultivariateNormal", "cholesky", "covariance", "diag", "triangular", "full matri", "mostly.zero|zeros", "linalg"],
    "remedy": ["Independent", r"\bNormal\b", "independent normals?", "elementwise|element-wise", "diagonal (normal|gaussian|form)", "scale_tril", "without (the|a) (full )?(covariance|matrix)",
               "LowRankMultivariateNormal", "vector of (variances|deviations)"],
}

AUCTIONS = 32


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(48, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.mean, self.spread = nn.Linear(64, AUCTIONS), nn.Linear(64, AUCTIONS)

    def forward(self, states):
        h = self.body(states)
        mean, spread = self.mean(h), self.spread(h).clamp(-3, 1).exp()
        return self.policy(mean, spread)

    def policy(self, mean, spread):
        return MultivariateNormal(mean, torch.diag_embed(spread.square()))


class ActorFixed(Actor):
    def policy(self, mean, spread):
        return Independent(Normal(mean, spread), 1)


class Learner:
    def __init__(self, actor):
        torch.manual_seed(17)
        self.actor = actor()
        self.opt = torch.optim.Adam(self.actor.parameters(), lr=3e-4)
        self.g = torch.Generator().manual_seed(18)

    def step(self):
        states = torch.randn(384, 48, generator=self.g)
        bids = torch.randn(384, AUCTIONS, generator=self.g)
        gain = torch.randn(384, generator=self.g)
        policy = self.actor(states)
        logp = policy.log_prob(bids)
        entropy = policy.entropy().mean()
        ratio = (logp - logp.detach()).exp()
        loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean() - 0.01 * entropy
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return {"loss": loss.detach(), "entropy": entropy.detach()}


def make_step():
    return Learner(Actor).step


def make_step_fixed():
    return Learner(ActorFixed).step
