"""A thread trains while the main thread waits, prints what comes by a queue, and evaluates a copy."""

import copy
import queue
import threading

import torch
from torch import nn

said = queue.Queue()


def train():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(10, 40), nn.ReLU(), nn.Linear(40, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for i in range(50):
        x = torch.randn(16, 10)
        loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 10 == 9:
            said.put((i, loss.item(), copy.deepcopy(model)))
    said.put(None)


thread = threading.Thread(target=train, name="trainer", daemon=True)
thread.start()
while (got := said.get()) is not None:
    with torch.no_grad():
        print(got[0], repr(got[1]), repr(got[2](torch.ones(4, 10)).mean().item()))
thread.join()
