"""Predicts the solubility of molecules with a small message-passing network; graphs are put together in batches."""
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "cause": "The property `num_kinds` of the data set joins the atoms of all molecules and takes their maximum, and it is read for every molecule of each batch; it should be computed once.",
    "lines": ["return int(torch.cat([kinds for kinds, _, _ in self.graphs]).max()) + 1", "x = F.one_hot(kinds, self.num_kinds).float()",
              "items = [self.data[i] for i in picks]", "def num_kinds(self):"],
    "says": ["num_kinds", "property", r"\bcat\b", "concatenat", "__getitem__", "repeat", "same (operands|result|work)", "constant", "whole data ?set", "python|host"],
    "remedy": ["once", "cache", "cached_property", "__init__", "precomput", "hoist", "outside", "attribute", "store"],
}


class Molecules:
    def __init__(self, count=1200):
        g = torch.Generator().manual_seed(19)
        self.graphs = []
        for _ in range(count):
            n = int(torch.randint(8, 24, (1,), generator=g))
            kinds, edges = torch.randint(0, 9, (n,), generator=g), torch.randint(0, n, (2, 2 * n), generator=g)
            self.graphs.append((kinds, edges, kinds.float().mean() / 9))

    @property
    def num_kinds(self):
        return int(torch.cat([kinds for kinds, _, _ in self.graphs]).max()) + 1

    def __getitem__(self, i):
        kinds, edges, y = self.graphs[i]
        x = F.one_hot(kinds, self.num_kinds).float()
        return x, edges, y


class MoleculesFixed(Molecules):
    num_kinds = None

    def __init__(self):
        super().__init__()
        self.num_kinds = int(torch.cat([kinds for kinds, _, _ in self.graphs]).max()) + 1


class Net(nn.Module):
    def __init__(self, kinds, width=48):
        super().__init__()
        self.start, self.out = nn.Linear(kinds, width), nn.Linear(width, 1)
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])

    def forward(self, x, edges, owner, count):
        h = self.start(x)
        for layer in self.layers:
            h = F.relu(h + torch.zeros_like(h).index_add_(0, edges[1], layer(h)[edges[0]]))
        return self.out(h.new_zeros(count, h.shape[1]).index_add_(0, owner, h)).squeeze(1)


class Trainer:
    def __init__(self, data):
        torch.manual_seed(20)
        self.data, self.net = data, Net(data.num_kinds)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        self.g = torch.Generator().manual_seed(21)

    def step(self):
        picks = torch.randint(0, len(self.data.graphs), (32,), generator=self.g).tolist()
        items = [self.data[i] for i in picks]
        sizes = torch.tensor([len(x) for x, _, _ in items])
        starts = (sizes.cumsum(0) - sizes).tolist()
        edges = torch.cat([e + s for (_, e, _), s in zip(items, starts)], 1)
        owner = torch.repeat_interleave(torch.arange(32), sizes)
        out = self.net(torch.cat([x for x, _, _ in items]), edges, owner, 32)
        loss = F.mse_loss(out, torch.stack([y for _, _, y in items]))
        self.opt.zero_grad(), loss.backward(), self.opt.step()
        return loss.detach()


def make_step():
    return Trainer(Molecules()).step


def make_step_fixed():
    return Trainer(MoleculesFixed()).step
