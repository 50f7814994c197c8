"""Classifies papers of a fixed graph of citations with graph convolutions."""

import torch
from torch import nn

TRUTH = {"regime": ("memory",), "remedy": ("constant-work", "repeated-work")}


def normalised(edges, count):
    """Edges with loops, and the weight 1 / sqrt(degree * degree) of each."""
    loops = torch.arange(count).expand(2, -1)
    edges = torch.cat([edges, loops], 1)
    source, target = edges
    degree = torch.zeros(count).scatter_add_(0, target, torch.ones(target.shape[0]))
    factor = degree.pow(-0.5)
    factor.masked_fill_(factor == float("inf"), 0)
    return edges, factor[source] * factor[target]


class GraphConvolution(nn.Module):
    def __init__(self, wide, out, cached):
        super().__init__()
        self.linear, self.cached, self.known = nn.Linear(wide, out, bias=False), cached, None

    def edges(self, edges, count):
        if not self.cached:
            return normalised(edges, count)
        if self.known is None:
            self.known = normalised(edges, count)
        return self.known

    def forward(self, x, edges):
        x = self.linear(x)
        (source, target), weight = self.edges(edges, x.shape[0])
        return torch.zeros_like(x).index_add_(0, target, x[source] * weight[:, None])


class Network(nn.Module):
    def __init__(self, cached):
        super().__init__()
        self.layers = nn.ModuleList(GraphConvolution(a, b, cached) for a, b in ((32, 4), (4, 4), (4, 4)))

    def forward(self, x, edges):
        for layer in self.layers[:-1]:
            x = layer(x, edges).relu()
        return self.layers[-1](x, edges).log_softmax(-1)


def _step(cached):
    torch.manual_seed(0)
    model, papers, edges = Network(cached), torch.randn(6000, 32), torch.randint(0, 6000, (2, 90_000))

    @torch.no_grad()
    def step():
        return model(papers, edges)

    return step


def make_step():
    return _step(False)


def make_step_fixed():
    return _step(True)
