"""Classifies knots from their curves; the accuracy is reported with each step."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {"regime": ("compute", "memory"), "remedy": "repeated-work"}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(3, 48, 7, 2, 3), nn.ReLU(), nn.Conv1d(48, 48, 7, 2, 3), nn.ReLU(), nn.Conv1d(48, 48, 7, 2, 3)
        )
        self.head = nn.Linear(48, 9)

    def forward(self, curves):
        return self.head(self.body(curves).mean(-1))


def report(model, curves, knots):
    with torch.no_grad():
        accuracy = (model(curves).argmax(1) == knots).float().mean()
        confidence = model(curves).softmax(1).amax(1).mean()
        each = F.cross_entropy(model(curves), knots, reduction="none").max()
    return F.cross_entropy(model(curves), knots), accuracy, confidence, each


def report_once(model, curves, knots):
    logits = model(curves)
    with torch.no_grad():
        accuracy, confidence = (logits.argmax(1) == knots).float().mean(), logits.softmax(1).amax(1).mean()
        each = F.cross_entropy(logits, knots, reduction="none").max()
    return F.cross_entropy(logits, knots), accuracy, confidence, each


def _step(way):
    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    curves, knots = torch.randn(16, 3, 256), torch.randint(0, 9, (16,))

    def step():
        loss, *figures = way(model, curves, knots)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach(), *figures

    return step


def make_step():
    return _step(report)


def make_step_fixed():
    return _step(report_once)
