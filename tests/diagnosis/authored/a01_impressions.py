"""Trains a click model on logged impressions and reports the ranking quality of each batch."""
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "cause": "The AUC is computed by comparing every clicked with every unclicked impression (a matrix of millions of pairs); a sort (ranks) gives the same number in n log n.",
    "lines": ["gap = pos[:, None] - neg[None, :]", "wins = (gap > 0).float() + 0.5 * (gap == 0).float()",
              "return wins.mean()", "quality = quality_of(logits.detach(), clicked)"],
    "says": ["pair", "ranking_quality", r"\bauc\b", "quadratic", r"n\s*[x×*]\s*n", "broadcast", "outer", "materiali[sz]", "large(r)? intermediate", r"O\(n"],
    "remedy": ["sort", "rank", "searchsorted", "mann.whitney", "n log n", "fewer (batches|steps)|less often|every \\w+ steps", "histogram|bins?\\b"],
}


class ClickModel(nn.Module):
    def __init__(self, fields=12, vocab=5000, width=16):
        super().__init__()
        self.offsets = torch.arange(fields) * vocab
        self.table = nn.EmbeddingBag(fields * vocab, width, mode="sum", sparse=True)
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, ids):
        return self.mlp(self.table(ids + self.offsets)).squeeze(1)


def ranking_quality(scores, clicked):
    pos, neg = scores[clicked], scores[~clicked]
    gap = pos[:, None] - neg[None, :]
    wins = (gap > 0).float() + 0.5 * (gap == 0).float()
    return wins.mean()


def ranking_quality_fixed(scores, clicked):
    pos, neg = scores[clicked], scores[~clicked].sort().values
    below = torch.searchsorted(neg, pos)
    upto = torch.searchsorted(neg, pos, right=True)
    return (below + upto).double().mean().float() / (2 * neg.numel())


def build(quality_of):
    torch.manual_seed(1)
    model = ClickModel()
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(2)

    def step():
        ids = torch.randint(0, 5000, (6144, 12), generator=g)
        clicked = torch.rand(6144, generator=g) < 0.15 + 0.2 * (ids[:, 0] % 2)
        logits = model(ids)
        loss = F.binary_cross_entropy_with_logits(logits, clicked.float())
        opt.zero_grad()
        loss.backward()
        opt.step()
        quality = quality_of(logits.detach(), clicked)
        return {"loss": loss.detach(), "quality": quality}
    return step


def make_step():
    return build(ranking_quality)


def make_step_fixed():
    return build(ranking_quality_fixed)
