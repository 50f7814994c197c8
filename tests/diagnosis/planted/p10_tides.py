"""Forecasts of tides: each epoch passes over a short set of windows with helpers of the loader."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {"regime": ("idle",), "remedy": ("workers-anew", "loader")}


class Forecaster(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.body, self.head = nn.GRU(1, hidden, batch_first=True), nn.Linear(hidden, 1)

    def forward(self, levels):
        return self.head(self.body(levels)[0][:, -1])


def loader_of(windows, **options):
    data = TensorDataset(windows[:, :-1, None], windows[:, -1:])
    return DataLoader(data, batch_size=32, num_workers=2, multiprocessing_context="fork", **options)


def _step(keep):
    torch.manual_seed(0)
    windows = torch.sin(torch.arange(400) * 0.21).unfold(0, 25, 3)
    model = Forecaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    kept = loader_of(windows, persistent_workers=True) if keep else None

    def epoch():
        total = 0.0
        for past, following in kept or loader_of(windows):
            loss = (model(past) - following).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        return total

    return epoch


def make_step():
    return _step(keep=False)


def make_step_fixed():
    return _step(keep=True)
