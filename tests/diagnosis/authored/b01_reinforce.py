"""Policy gradient update for a batch of episodes of a lander with a learned baseline."""
import torch
from torch import nn

TRUTH = {
    "cause": "The return of each time step is summed anew over the whole rest of the episode (quadratic in its length, "
             "with fresh discount weights each time), where one backward recursion gives all of them.",
    "lines": ["for t in range(horizon):", "weights = gamma ** torch.arange(horizon - t", "out[:, t] = (rewards[:, t:] * weights).sum(1)",
              "returns = self.returns_of(self.rewards, self.gamma)"],
    "says": ["discount", "returns?_of", "quadratic", r"O\(T", "loop", "vectori[sz]", "repeated", "small op", "gamma", "arange", r"\bpow\b"],
    "remedy": ["recurs", "backward pass over", "revers", "cumulative|cumsum|cumprod", "vectori[sz]e", "one (matrix )?(product|matmul)", "triangular",
               "scan", "running (sum|return)", "precompute", r"outside (of )?the loop", "once", "lfilter"],
}


def tail_sums(rewards, gamma):
    horizon = rewards.shape[1]
    out = torch.empty_like(rewards)
    for t in range(horizon):
        weights = gamma ** torch.arange(horizon - t, dtype=rewards.dtype)
        out[:, t] = (rewards[:, t:] * weights).sum(1)
    return out


def recursion(rewards, gamma):
    out = torch.empty_like(rewards)
    running = torch.zeros(rewards.shape[0])
    columns = rewards.t().contiguous()
    for t in reversed(range(rewards.shape[1])):
        running = torch.add(columns[t], running, alpha=gamma)
        out[:, t] = running
    return out


class Agent:
    def __init__(self, returns_of, gamma=0.99):
        torch.manual_seed(0)
        self.returns_of, self.gamma = returns_of, gamma
        self.policy = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
        self.value = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
        params = [*self.policy.parameters(), *self.value.parameters()]
        self.optimizer = torch.optim.Adam(params, lr=3e-3)
        self.states = torch.randn(12, 700, 8)
        self.actions = torch.randint(4, (12, 700))
        self.rewards = torch.randn(12, 700) * 0.1

    def update(self):
        returns = self.returns_of(self.rewards, self.gamma)
        values = self.value(self.states).squeeze(-1)
        log_probs = self.policy(self.states).log_softmax(-1).gather(-1, self.actions[..., None]).squeeze(-1)
        advantage = returns - values.detach()
        loss = -(log_probs * advantage).mean() + 0.5 * (returns - values).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def make_step():
    return Agent(tail_sums).update


def make_step_fixed():
    return Agent(recursion).update
