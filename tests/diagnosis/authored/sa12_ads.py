"""Trains a ranker of advertisements; samples with a large loss are drawn more often."""
import sys
import time
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Sampler, TensorDataset

TRUTH = {
    "cause": "The sampler draws one index at a time with np.random choice(p=...), which checks and sums up all 40,000 probabilities at every draw; draw many at once, or keep the cumulative sums and search them.",
    "lines": ["yield int(self.rng.choice(len(self.chance), p=self.chance))", "for ids, clicked, rows in loader:", "for _ in range(self.count):"],
    "says": ["choice", "sampler", "draw|sampling", "probabilit", "cumsum|cumulative", "numpy", "loader", "__iter__", "one (index )?at a time|per sample|each (draw|sample)", "python|host"],
    "remedy": ["size ?=", "at once|in one (call|go)|many", "once", "cumsum|cumulative|searchsorted", "multinomial", "alias", "sum.?tree|tree", "vectori[sz]e", "WeightedRandomSampler", "batched|in batches|a batch of (draws|indices)"],
}

ROWS = 40000


class HardSampler(Sampler):
    def __init__(self, count, seed):
        self.loss = np.ones(ROWS)
        self.count, self.rng = count, np.random.default_rng(seed)

    def note(self, rows, losses):
        self.loss[rows.numpy()] = losses.numpy()

    def __len__(self):
        return self.count

    def __iter__(self):
        weight = self.loss + 0.05
        self.chance = weight / weight.sum()
        for _ in range(self.count):
            yield int(self.rng.choice(len(self.chance), p=self.chance))


class HardSamplerMended(HardSampler):
    def __iter__(self):
        weight = self.loss + 0.05
        self.chance = weight / weight.sum()
        yield from self.rng.choice(len(self.chance), size=self.count, p=self.chance).tolist()


class Ranker(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.table = nn.EmbeddingBag(6000, width, mode="sum")
        self.net = nn.Sequential(nn.Linear(width, 96), nn.ReLU(), nn.Linear(96, 1))

    def forward(self, ids):
        return self.net(self.table(ids)).squeeze(1)


def main():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 6000, (ROWS, 12), generator=g)
    clicked = ((ids[:, 0] % 3 == 0) & (ids[:, 1] % 2 == 0)).float()
    data = TensorDataset(ids, clicked, torch.arange(ROWS))
    sampler = (HardSamplerMended if "--mended" in sys.argv else HardSampler)(count=5120, seed=2)
    loader = DataLoader(data, batch_size=128, sampler=sampler)
    model = Ranker()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    start = time.perf_counter()
    for epoch in range(3):
        total = 0.0
        for ids, clicked, rows in loader:
            losses = F.binary_cross_entropy_with_logits(model(ids), clicked, reduction="none")
            opt.zero_grad()
            losses.mean().backward()
            opt.step()
            sampler.note(rows, losses.detach())
            total += losses.detach().mean().item()
        print(f"epoch {epoch}: loss {total / len(loader):.4f}")
    print(f"trained in {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    main()
