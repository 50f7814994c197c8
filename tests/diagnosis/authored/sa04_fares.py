"""Trains a model of taxi fares; the bar shows the error, its correlation and rank quality over all that was seen."""
import sys
import time
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "cause": "The meter joins all outputs seen so far and computes its figures over the whole history in every step (cost grows with the steps) though they are only shown every 40 steps; sums should be kept, or the figures be computed when shown.",
    "lines": ["self.said, self.true = torch.cat([self.said, said]), torch.cat([self.true, true])", "figures = meter(out.detach(), fares)", "return self.compute()",
              "order = self.said.argsort().argsort().double()", "rank = torch.corrcoef(torch.stack([order, self.true.argsort().argsort().double()]))[0, 1]",
              "linear = torch.corrcoef(torch.stack([self.said, self.true]))[0, 1]"],
    "says": [r"\bcat\b", "concatenat", "meter", "metric", "history|so far|grow", "argsort|\\bsort\\b", "corrcoef|correlation", "compute", "quadratic", "accumulat", "copies|copy"],
    "remedy": ["running|incremental|sums", "only (when|every|at)|every \\w+ steps|less often", "end of (the )?epoch", "once", "when (it is |they are )?(shown|printed|reported|needed)", "sort.*(less|seldom)"],
}


class Meter:
    def __init__(self):
        self.said, self.true = torch.empty(0), torch.empty(0)

    def update(self, said, true):
        self.said, self.true = torch.cat([self.said, said]), torch.cat([self.true, true])

    def compute(self):
        error = (self.said - self.true).abs().mean()
        linear = torch.corrcoef(torch.stack([self.said, self.true]))[0, 1]
        order = self.said.argsort().argsort().double()
        rank = torch.corrcoef(torch.stack([order, self.true.argsort().argsort().double()]))[0, 1]
        return {"error": error.item(), "linear": linear.item(), "rank": rank.item()}

    def __call__(self, said, true):
        self.update(said, true)
        return self.compute()


class MeterMended(Meter):
    def __init__(self):
        self.parts = []

    def __call__(self, said, true):
        self.parts.append((said, true))

    def show(self):
        self.said, self.true = (torch.cat(part) for part in zip(*self.parts))
        return self.compute()


def rides(g, n=512):
    x = torch.randn(n, 24, generator=g)
    hour = torch.randint(0, 24, (n,), generator=g)
    fares = x[:, 0].abs() * 3 + x[:, 1] * x[:, 2] + 0.2 * (hour - 12).abs() + 0.3 * torch.randn(n, generator=g)
    return x, hour, fares


class Fares(nn.Module):
    def __init__(self):
        super().__init__()
        self.hour = nn.Embedding(24, 8)
        self.net = nn.Sequential(nn.Linear(32, 192), nn.ReLU(), nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 1))

    def forward(self, x, hour):
        return self.net(torch.cat([x, self.hour(hour)], 1)).squeeze(1)


def main():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    model = Fares()
    opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    mended = "--mended" in sys.argv
    meter = MeterMended() if mended else Meter()
    start = time.perf_counter()
    for step in range(240):
        x, hour, fares = rides(g)
        out = model(x, hour)
        loss = F.huber_loss(out, fares)
        opt.zero_grad()
        loss.backward()
        opt.step()
        figures = meter(out.detach(), fares)
        if step % 40 == 39:
            figures = figures or meter.show()
            print(f"step {step}: " + " ".join(f"{k} {v:.4f}" for k, v in figures.items()))
    print(f"{step + 1} steps in {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    main()
