"""Trains a perceptron that returns to its last good state when the loss is not finite."""

import copy
import math

import torch
from torch import nn

TRUTH = {"regime": ("memory",), "remedy": ("copies", "unread")}


class Trainer:
    def __init__(self, every):
        torch.manual_seed(0)
        layers = nn.Linear(768, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1)
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-3, momentum=0.9, fused=True)
        self.every, self.count, self.good = every, 0, None

    def remember(self):
        if self.count % self.every == 0:
            self.good = copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))
        self.count += 1

    def train(self, x, y):
        loss = nn.functional.mse_loss(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        if math.isfinite(loss.item()):
            self.optimizer.step()
            self.remember()
        else:
            self.model.load_state_dict(self.good[0])
            self.optimizer.load_state_dict(self.good[1])
        return loss.detach()


def _step(every):
    trainer, x, y = Trainer(every), torch.randn(16, 768), torch.randn(16, 1)
    return lambda: trainer.train(x, y)


def make_step():
    return _step(1)


def make_step_fixed():
    return _step(200)
