"""Ranks horses of each race; races have different numbers of starters."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {"regime": ("overhead",), "remedy": "vectorise"}


def race_by_race(scores, starters, winners):
    losses = []
    for i in range(len(scores)):
        runners = scores[i, : starters[i]]
        losses.append(torch.logsumexp(runners, 0) - runners[winners[i]])
    return torch.stack(losses).mean()


def all_races(scores, starters, winners):
    running = torch.arange(scores.shape[1]) < torch.tensor(starters).unsqueeze(1)
    return F.cross_entropy(scores.masked_fill(~running, -torch.inf), torch.tensor(winners))


def _step(loss_of):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    races = torch.randn(160, 14, 10)
    starters = [5 + i % 10 for i in range(160)]
    winners = [i % n for i, n in enumerate(starters)]

    def step():
        loss = loss_of(model(races).squeeze(-1), starters, winners)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def make_step():
    return _step(race_by_race)


def make_step_fixed():
    return _step(all_races)
