"""Trains a perceptron on readings of gauges; a monitor draws histograms of its weights, one picture in 100 steps."""

import torch
from torch import nn

TRUTH = {"regime": ("compute", "memory"), "remedy": ("unread",)}


class Monitor:
    def __init__(self, model, early):
        self.model, self.early, self.count, self.pages = model, early, 0, []

    def distribution(self, values):
        low, high = values.aminmax()
        return torch.histc(values, 64), low, high, values.std()

    def summary(self):
        found = {}
        for name, weight in self.model.named_parameters():
            found[f"weights/{name}"] = self.distribution(weight.detach())
            found[f"gradients/{name}"] = self.distribution(weight.grad)
        return found

    def after_step(self):
        self.count += 1
        if self.early:
            page = self.summary()
            if self.count % 100 == 0:
                self.pages.append(page)
        elif self.count % 100 == 0:
            self.pages.append(self.summary())
        del self.pages[:-3]


def _step(early):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 512), nn.SiLU(), nn.Linear(512, 512), nn.SiLU(), nn.Linear(512, 512), nn.SiLU(), nn.Linear(512, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, foreach=True)
    monitor = Monitor(model, early)
    readings, target = torch.randn(128, 64), torch.randn(128, 1)

    def step():
        loss = nn.functional.mse_loss(model(readings), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.after_step()
        return loss.detach()

    return step


def make_step():
    return _step(True)


def make_step_fixed():
    return _step(False)
