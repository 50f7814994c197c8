"""Trains a filter of rude reviews; after each epoch the best threshold on held-out reviews is looked for."""
import sys
import time
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

TRUTH = {
    "cause": "The best F1 is looked for by counting over all held-out scores anew for each distinct score as threshold (quadratic); one sort and cumulative sums give all thresholds at once.",
    "lines": ["for threshold in torch.unique(scores):", "said = scores >= threshold", "hits = (said & rude).sum().item()",
              "f1 = 2 * hits / max(said.sum().item() + total, 1)", "f1, threshold = best_f1(scores, held_y.bool())"],
    "says": ["threshold", "best_f1|\\bf1\\b", "quadratic", "loop", "item", "unique", "small op", "vectori[sz]", "for each", "metric", "python|host"],
    "remedy": ["sort", "cumsum|cumulative", "vectori[sz]e", "broadcast", "searchsorted|histogram|bins?\\b", "grid of|fewer thresholds", "precision_recall_curve", "all thresholds (at once|together)", "less often|every \\w+ epochs"],
}


def reviews(n, seed):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 2000, (n, 30), generator=g)
    rude = (ids < 90).sum(1) + 0.7 * torch.randn(n, generator=g) > 2
    return ids, rude.float()


class Filter(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.table = nn.Embedding(2000, width)
        self.score = nn.Linear(width, width)
        self.out = nn.Linear(width, 1)

    def forward(self, ids):
        h = self.table(ids)
        return self.out((h * torch.sigmoid(self.score(h))).sum(1)).squeeze(1)


def best_f1(scores, rude):
    best, total = (0.0, 0.0), rude.sum().item()
    for threshold in torch.unique(scores):
        said = scores >= threshold
        hits = (said & rude).sum().item()
        f1 = 2 * hits / max(said.sum().item() + total, 1)
        best = max(best, (f1, threshold.item()))
    return best


def best_f1_mended(scores, rude):
    order = scores.argsort(descending=True)
    hits = rude[order].double().cumsum(0)
    f1 = 2 * hits / (torch.arange(1, len(scores) + 1) + rude.sum())
    top = f1.argmax()
    return f1[top].item(), scores[order[top]].item()


def main():
    if "--mended" in sys.argv:
        globals()["best_f1"] = best_f1_mended
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(*reviews(768, 1)), batch_size=64, shuffle=True)
    held_x, held_y = reviews(4000, 2)
    model = Filter()
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    start = time.perf_counter()
    for epoch in range(45):
        model.train()
        for ids, y in loader:
            loss = F.binary_cross_entropy_with_logits(model(ids), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            scores = model(held_x)
        f1, threshold = best_f1(scores, held_y.bool())
        if epoch % 9 == 8:
            print(f"epoch {epoch}: loss {loss.item():.4f} best F1 {f1:.4f} at {threshold:.4f}")
    print(f"done, {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    main()
