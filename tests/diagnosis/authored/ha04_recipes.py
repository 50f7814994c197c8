"""Trains two towers that bring cooks and recipes together; the other recipes of a batch are what a cook did not choose."""
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {"healthy": True}

COOKS, RECIPES, WIDTH = 60000, 40000, 32


class Tower(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.table = nn.EmbeddingBag(rows, WIDTH, mode="mean", sparse=True)
        self.net = nn.Sequential(nn.Linear(WIDTH, 768), nn.ReLU(inplace=True), nn.Linear(768, 768), nn.ReLU(inplace=True), nn.Linear(768, 128))

    def forward(self, ids):
        return F.normalize(self.net(self.table(ids)), dim=1)


class Trainer:
    def __init__(self):
        torch.manual_seed(85)
        self.cook, self.recipe = Tower(COOKS), Tower(RECIPES)
        towers = (self.cook, self.recipe)
        self.tables = torch.optim.SGD([t.table.weight for t in towers], lr=0.5)
        self.nets = torch.optim.SGD([p for t in towers for p in t.net.parameters()], lr=0.05, fused=True)
        self.g = torch.Generator().manual_seed(86)
        self.own = torch.arange(768)
        self.count, self.best = 0, float("inf")

    def batch(self):
        cooks = torch.randint(0, COOKS, (768, 8), generator=self.g)
        recipes = torch.randint(0, RECIPES, (768, 12), generator=self.g)
        return cooks, recipes

    def step(self):
        cooks, recipes = self.batch()
        scores = self.cook(cooks) @ self.recipe(recipes).t() / 0.07
        loss = F.cross_entropy(scores, self.own)
        self.tables.zero_grad()
        self.nets.zero_grad()
        loss.backward()
        self.tables.step()
        self.nets.step()
        self.count += 1
        if self.count % 100 == 0:
            self.best = min(self.best, loss.item())
        return loss.detach()


def make_step():
    return Trainer().step
