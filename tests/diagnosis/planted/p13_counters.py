"""Training writes its figures to a recorder that another thread flushes."""

import threading
import time

import torch
from torch import nn

TRUTH = {"regime": ("idle",), "remedy": "asleep"}


class Recorder:
    def __init__(self, flush_inside):
        self.figures, self.lock, self.flush_inside = [], threading.Lock(), flush_inside
        threading.Thread(target=self.flush, daemon=True).start()

    def add(self, figure):
        with self.lock:
            self.figures.append(figure)

    def flush(self):
        while True:
            with self.lock:
                self.figures.clear()
                if self.flush_inside:
                    time.sleep(0.01)  # the write
            time.sleep(0.002)


def _step(flush_inside):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y, recorder = torch.randn(256, 64), torch.randn(256, 1), Recorder(flush_inside)

    def step():
        for _ in range(6):
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.add(loss.detach())
        return loss.detach()

    return step


def make_step():
    return _step(flush_inside=True)


def make_step_fixed():
    return _step(flush_inside=False)
