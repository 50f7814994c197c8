"""LBFGS: forward and backward lie inside ``optimizer.step(closure)``, up to ten times; evaluation predicts further."""

import argparse

import numpy as np
import torch
from torch import nn, optim


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm1, self.lstm2, self.linear = nn.LSTMCell(1, 12), nn.LSTMCell(12, 12), nn.Linear(12, 1)

    def forward(self, series, future=0):
        outputs = []
        h1, c1, h2, c2 = (torch.zeros(series.size(0), 12, dtype=torch.double) for _ in range(4))
        for column in series.split(1, dim=1):
            h1, c1 = self.lstm1(column, (h1, c1))
            h2, c2 = self.lstm2(h1, (h2, c2))
            outputs += [self.linear(h2)]
        for _ in range(future):
            h1, c1 = self.lstm1(outputs[-1], (h1, c1))
            h2, c2 = self.lstm2(h1, (h2, c2))
            outputs += [self.linear(h2)]
        return torch.cat(outputs, dim=1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=15)
    opt = parser.parse_args()
    np.random.seed(0)
    torch.manual_seed(0)
    data = np.sin((np.arange(40) + np.random.randint(-80, 80, 8).reshape(8, 1)) / 5.0)
    series, target = torch.from_numpy(data[2:, :-1]), torch.from_numpy(data[2:, 1:])
    test_series = torch.from_numpy(data[:2, :-1])
    seq = Sequence()
    seq.double()
    criterion = nn.MSELoss()
    optimizer = optim.LBFGS(seq.parameters(), lr=0.8, max_iter=10)
    for i in range(opt.steps):
        print("STEP: ", i)

        def closure():
            optimizer.zero_grad()
            loss = criterion(seq(series), target)
            print("loss:", loss.item())
            loss.backward()
            return loss

        optimizer.step(closure)
        with torch.no_grad():
            pred = seq(test_series, future=60)
            print("mean of what follows:", pred[:, 39:].mean().item())
            np.save(f"predict{i}.npy", pred.numpy())
