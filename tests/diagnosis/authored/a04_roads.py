"""Trains a graph network that predicts the speed on crossings of a road map from what its neighbours report."""
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "cause": "The message network runs on gathered rows, once for each edge, although a message depends on its source node only; run it per node (20 times fewer) and gather its results.",
    "lines": ["return self.message(h[src])", "self.message = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))",
              "total = torch.zeros_like(h).index_add_(0, dst, self.messages(h, src))"],
    "says": ["message", "gather", "per edge|each edge|every edge", "duplicate|repeated rows|same rows", "edges", "linear|addmm|matmul", "redundan", "index"],
    "remedy": ["per node|each node|on (the )?nodes|of (the )?nodes", "before (the )?gather", "gather (after|the results?|later)", "then (gather|index)", "first.*(gather|index)", "unique", "once"],
}


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.own = nn.Linear(width, width)

    def messages(self, h, src):
        return self.message(h[src])

    def forward(self, h, src, dst, degree):
        total = torch.zeros_like(h).index_add_(0, dst, self.messages(h, src))
        return h + F.relu(self.own(h) + total / degree)


class LayerFixed(Layer):
    def messages(self, h, src):
        return self.message(h)[src]


class Roads(nn.Module):
    def __init__(self, layer, width=64):
        super().__init__()
        self.start = nn.Linear(10, width)
        self.layers = nn.ModuleList([layer(width) for _ in range(2)])
        self.out = nn.Linear(width, 1)

    def forward(self, x, src, dst, degree):
        h = F.relu(self.start(x))
        for layer in self.layers:
            h = layer(h, src, dst, degree)
        return self.out(h).squeeze(1)


class Trainer:
    def __init__(self, layer, crossings=800, roads=16000):
        torch.manual_seed(35)
        self.net = Roads(layer)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=2e-3)
        self.g = torch.Generator().manual_seed(36)
        self.src = torch.randint(0, crossings, (roads,), generator=self.g)
        self.dst = torch.randint(0, crossings, (roads,), generator=self.g)
        self.degree = torch.bincount(self.dst, minlength=crossings).clamp(min=1).unsqueeze(1)

    def step(self):
        x = torch.randn(len(self.degree), 10, generator=self.g)
        speed = x[:, :3].sum(1)
        loss = F.l1_loss(self.net(x, self.src, self.dst, self.degree), speed)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()


def make_step():
    return Trainer(Layer).step


def make_step_fixed():
    return Trainer(LayerFixed).step
