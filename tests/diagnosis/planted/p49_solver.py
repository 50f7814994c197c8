"""Learns a flow on a grid; the trainer keeps an eye on all layers."""

import torch
from torch import nn

TRUTH = {"regime": ("memory", "compute", "overhead"), "remedy": "unread"}


class Monitor:
    def __init__(self, model, on):
        self.seen = {}
        if on:
            for name, module in model.named_modules():
                module.register_forward_hook(lambda module, args, out, name=name: self.look(name, out.detach()))

    def look(self, name, out):
        low, high = torch.quantile(out.flatten()[:8192], torch.tensor([0.05, 0.95]))
        counts = torch.histc(out, bins=64)
        self.seen[name] = {"mean": out.mean(), "std": out.std(), "low": low, "high": high, "counts": counts}


def _step(on, report_every=1_000_000):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor, x, y, steps = Monitor(model, on), torch.randn(1024, 16), torch.randn(1024, 2), [0]

    def step():
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps[0] += 1
        if steps[0] % report_every == 0:
            print({name: figures["mean"].item() for name, figures in monitor.seen.items()})
        return loss.detach()

    return step


def make_step():
    return _step(on=True)


def make_step_fixed():
    return _step(on=False)
