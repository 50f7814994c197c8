"""Trains a cross network that predicts whether a shopper takes a product from a shelf of recommendations."""
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "cause": "Each cross layer forms the outer product x0 xl' for every row (batch x width x width) and multiplies it by a vector; x0 * (xl . w) gives the same without the matrix.",
    "lines": ["outer = torch.bmm(x0.unsqueeze(2), x.unsqueeze(1))", "return outer @ weight",
              "x = cross(x0, x, w) + b + x"],
    "says": ["outer", "bmm", "batch(ed)? (matrix )?product", "associat", "order of (the )?(products|multiplication|operations)", "interact",
             "materiali[sz]", "large intermediate", "rank.?(1|one)", "matmul"],
    "remedy": ["associat", r"x\s*@\s*w", "dot product", "inner product", "reorder|other order|order of", "without (forming|building|materiali[sz]ing)",
               "first.*(vector|weight)", "(vector|weight).*first", r"x0\s*\*", "avoid (the|forming|building|materiali[sz]ing)"],
}

WIDTH = 160


def cross(x0, x, weight):
    outer = torch.bmm(x0.unsqueeze(2), x.unsqueeze(1))
    return outer @ weight


def cross_fixed(x0, x, weight):
    return x0 * (x @ weight).unsqueeze(1)


class CrossNet(nn.Module):
    def __init__(self, op, depth=3):
        super().__init__()
        self.op = op
        self.table = nn.Embedding(4000, 16)
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(WIDTH) * 0.05) for _ in range(depth)])
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(WIDTH)) for _ in range(depth)])
        self.deep = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU())
        self.out = nn.Linear(WIDTH + 64, 1)

    def forward(self, ids):
        cross = self.op
        x0 = self.table(ids).flatten(1)
        x = x0
        for w, b in zip(self.weights, self.biases):
            x = cross(x0, x, w) + b + x
        return self.out(torch.cat([x, self.deep(x0)], 1)).squeeze(1)


def build(op):
    torch.manual_seed(7)
    model = CrossNet(op)
    opt = torch.optim.Adagrad(model.parameters(), lr=0.01)
    g = torch.Generator().manual_seed(8)

    def step():
        ids = torch.randint(0, 4000, (256, WIDTH // 16), generator=g)
        taken = (ids.sum(1) % 2).float()
        loss = F.binary_cross_entropy_with_logits(model(ids), taken)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()
    return step


def make_step():
    return build(cross)


def make_step_fixed():
    return build(cross_fixed)
