"""Trains a detector of card fraud and follows the area under its ROC curve on held-out payments."""
import sys
import time
import torch
from torch import nn

TRUTH = {
    "cause": "The area under the curve compares every fraud with every honest payment (a huge matrix), where one sort of the scores gives it.",
    "lines": ["wins = (good[:, None] < bad[None, :]).float()", "ties = (good[:, None] == bad[None, :]).float()", "return (wins + 0.5 * ties).mean()",
              "auc = area(scores, held_y)"],
    "says": ["area", "auc", "pair", "all-pairs", "quadratic", "compar", "outer", r"wins|ties", "matrix", "broadcast", "large (tensor|intermediate)", "metric", "evaluat"],
    "remedy": ["sort", "rank", "searchsorted", "bucket|histogram", "n log n", "roc_auc", "torchmetrics|sklearn", "less often|fewer evaluations|evaluate (rarely|less)", "once (per|an) epoch",
               "subsample"],
}
MENDED = "--mended" in sys.argv


def area(scores, labels):
    bad, good = scores[labels == 1], scores[labels == 0]
    if MENDED:
        ordered = good.sort().values
        below = torch.searchsorted(ordered, bad, right=False)
        upto = torch.searchsorted(ordered, bad, right=True)
        return (0.5 * (below + upto).double()).mean() / len(good)
    wins = (good[:, None] < bad[None, :]).float()
    ties = (good[:, None] == bad[None, :]).float()
    return (wins + 0.5 * ties).mean()


def payments(count, gen):
    x = torch.randn(count, 30, generator=gen)
    logit = x[:, :5].sum(1) + x[:, 5] * x[:, 6] - 5
    return x, (torch.rand(count, generator=gen) < torch.sigmoid(logit)).float()


def main():
    gen = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    train_x, train_y = payments(20000, gen)
    held_x, held_y = payments(14000, gen)
    net = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    loss_fn = nn.BCEWithLogitsLoss()
    start, best = time.time(), 0.0
    for step in range(300):
        rows = torch.randint(len(train_x), (512,), generator=gen)
        loss = loss_fn(net(train_x[rows]).squeeze(1), train_y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 6 == 5:
            net.eval()
            with torch.no_grad():
                scores = net(held_x).squeeze(1)
            auc = area(scores, held_y)
            best = max(best, float(auc))
            net.train()
        if step % 60 == 59:
            print(f"step {step + 1}: loss {loss.item():.4f} best auc {best:.4f}")
    print(f"loop {time.time() - start:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
