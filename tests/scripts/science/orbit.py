"""An adaptive ODE solver calls the network a varying number of times a step, by way of a module made anew each time."""

import argparse
from itertools import pairwise

import numpy as np
import torch
from torch import nn, optim

parser = argparse.ArgumentParser()
parser.add_argument("--data_size", type=int, default=80)
parser.add_argument("--niters", type=int, default=20)
parser.add_argument("--test_freq", type=int, default=10)
args = parser.parse_args()


class _PerturbFunc(nn.Module):
    def __init__(self, base_func):
        super().__init__()
        self.base_func = base_func

    def forward(self, t, y):
        return self.base_func(t, y)


def odeint(func, y0, t, tolerance=1e-4):
    """Heun's method, whose step is halved until the difference to Euler's is small."""
    func = _PerturbFunc(func)
    solution = [y0]
    y, h = y0, t[1] - t[0]
    for start, end in pairwise(t):
        now = start
        while now < end - 1e-9:
            h = min(h, end - now)
            k1 = func(now, y)
            k2 = func(now + h, y + h * k1)
            error = (h * (k2 - k1) / 2).abs().max().item()
            if error > tolerance and h > 0.01:
                h = h / 2
                continue
            y, now = y + h * (k1 + k2) / 2, now + h
            h = h * 1.5
        solution.append(y)
    return torch.stack(solution)


class Lambda(nn.Module):
    def forward(self, t, y):
        return torch.mm(y**3, true_a)


class ODEFunc(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 2))
        for m in self.net.modules():
            if isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, mean=0, std=0.1)
                nn.init.constant_(m.bias, val=0)

    def forward(self, t, y):
        return self.net(y**3)


true_a = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]])
true_y0, t = torch.tensor([[2.0, 0.0]]), torch.linspace(0.0, 8.0, args.data_size)
with torch.no_grad():
    true_y = odeint(Lambda(), true_y0, t)


def get_batch():
    s = torch.from_numpy(np.random.choice(np.arange(args.data_size - 6, dtype=np.int64), 8, replace=False))
    return true_y[s], t[:6], torch.stack([true_y[s + i] for i in range(6)], dim=0)


if __name__ == "__main__":
    func = ODEFunc()
    optimizer = optim.RMSprop(func.parameters(), lr=1e-3)
    for itr in range(1, args.niters + 1):
        optimizer.zero_grad()
        batch_y0, batch_t, batch_y = get_batch()
        loss = torch.mean(torch.abs(odeint(func, batch_y0, batch_t) - batch_y))
        loss.backward()
        optimizer.step()
        if itr % args.test_freq == 0:
            with torch.no_grad():
                loss = torch.mean(torch.abs(odeint(func, true_y0, t) - true_y))
                print(f"Iter {itr:04d} | Total Loss {loss.item():.6f}")
