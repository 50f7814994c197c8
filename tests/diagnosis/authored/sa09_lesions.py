"""Classifies codes of skin lesions; the kinds are of very different frequency, so they are drawn with weights."""
import random
import sys
import time
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

TRUTH = {
    "cause": "The sampler's weights are computed anew in each epoch with labels.count() for every sample: a pass over all labels per sample (quadratic).",
    "lines": ["weights = [1.0 / labels.count(label) for label in labels]", "loader = make_loader(data, labels, seed=epoch)",
              "sampler = WeightedRandomSampler(balanced(labels)"],
    "says": ["count", "weight", "sampler", "quadratic", "make_loader|balanced", "list comp|listcomp", "python|host", "loader"],
    "remedy": ["bincount", "Counter", "once", "outside (of )?the (epoch|loop)", "dict", "unique", "precomput", "hoist", "reuse|re-use", "cache"],
}


def lesions(n=5000):
    rng = random.Random(0)
    labels = rng.choices(range(24), weights=[1 / (k + 1) ** 1.3 for k in range(24)], k=n)
    g = torch.Generator().manual_seed(1)
    centres = torch.randn(24, 128, generator=g)
    codes = centres[torch.tensor(labels)] + 1.5 * torch.randn(n, 128, generator=g)
    return TensorDataset(codes, torch.tensor(labels)), labels


def balanced(labels):
    weights = [1.0 / labels.count(label) for label in labels]
    return torch.tensor(weights, dtype=torch.double)


def balanced_mended(labels):
    y = torch.tensor(labels)
    return 1.0 / torch.bincount(y).double()[y]


def make_loader(data, labels, seed):
    g = torch.Generator().manual_seed(seed)
    sampler = WeightedRandomSampler(balanced(labels), num_samples=1536, generator=g)
    return DataLoader(data, batch_size=64, sampler=sampler)


def main():
    if "--mended" in sys.argv:
        globals()["balanced"] = balanced_mended
    torch.manual_seed(0)
    data, labels = lesions()
    model = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Dropout(0.1), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 24))
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.05)
    sched = torch.optim.lr_scheduler.StepLR(opt, 4, gamma=0.7)
    start = time.perf_counter()
    for epoch in range(14):
        loader = make_loader(data, labels, seed=epoch)
        total, right, seen = 0.0, 0, 0
        for x, y in loader:
            out = model(x)
            loss = F.cross_entropy(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item() * len(y)
            right += (out.argmax(1) == y).sum().item()
            seen += len(y)
        sched.step()
        if epoch % 4 == 0:
            print(f"epoch {epoch}: loss {total / seen:.4f} accuracy {right / seen:.3f}")
    print(f"final loss {total / seen:.4f}, {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    main()
