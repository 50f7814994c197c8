"""Trains a segmenter of organs; after each epoch five figures are computed on the validation scans."""
import sys
import time
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "cause": "Each of the five figures makes its own pass over the validation loader, with the network's forward pass; one pass gives the outputs for all.",
    "lines": ["return {name: average(model, loader, figure) for name, figure in FIGURES.items()}", "out = model(scans)", "report = evaluate(model, valid)", "def average(model, loader, figure):"],
    "says": ["pass", "evaluat|validat", "forward", "average", "figure|metric", "repeat", "same (operands|inputs|work|batches)", "conv", "five|5"],
    "remedy": ["one pass|single pass|same pass", "once", "share", "reuse|re-use", "all (the )?(figures|metrics)", "together", "outside (of )?the loop", "cache|keep the (outputs|predictions)"],
}


def dice(out, organs, kind=1):
    said, true = out.argmax(1) == kind, organs == kind
    return 2 * (said & true).sum() / (said.sum() + true.sum()).clamp(min=1)


FIGURES = {
    "loss": lambda out, organs: F.cross_entropy(out, organs),
    "accuracy": lambda out, organs: (out.argmax(1) == organs).float().mean(),
    "liver": lambda out, organs: dice(out, organs, 1),
    "kidney": lambda out, organs: dice(out, organs, 2),
    "confidence": lambda out, organs: out.softmax(1).amax(1).mean(),
}


def scans(n, seed):
    g = torch.Generator().manual_seed(seed)
    organs = F.interpolate(torch.rand(n, 3, 6, 6, generator=g), size=48, mode="bilinear").argmax(1)
    return TensorDataset(0.4 * organs.unsqueeze(1) + 0.3 * torch.randn(n, 1, 48, 48, generator=g), organs)


@torch.no_grad()
def average(model, loader, figure):
    total = 0.0
    for scans, organs in loader:
        out = model(scans)
        total += figure(out, organs).item()
    return total / len(loader)


def evaluate(model, loader):
    return {name: average(model, loader, figure) for name, figure in FIGURES.items()}


@torch.no_grad()
def evaluate_mended(model, loader):
    totals = dict.fromkeys(FIGURES, 0.0)
    for scans, organs in loader:
        out = model(scans)
        for name, figure in FIGURES.items():
            totals[name] += figure(out, organs).item()
    return {name: total / len(loader) for name, total in totals.items()}


def main():
    if "--mended" in sys.argv:
        globals()["evaluate"] = evaluate_mended
    torch.manual_seed(0)
    train = DataLoader(scans(64, 1), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(3))
    valid = DataLoader(scans(96, 2), batch_size=16)
    model = nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 24, 3, padding=2, dilation=2),
                          nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, 24, 3, padding=4, dilation=4), nn.ReLU(), nn.Conv2d(24, 3, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    start = time.perf_counter()
    for epoch in range(9):
        model.train()
        for x, organs in train:
            loss = F.cross_entropy(model(x), organs)
            opt.zero_grad()
            loss.backward()
            opt.step()
        model.eval()
        report = evaluate(model, valid)
        if epoch % 3 == 2:
            print(f"epoch {epoch}: " + " ".join(f"{k} {v:.4f}" for k, v in report.items()))
    print(f"took {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    main()
