"""Trains a tagger of long texts; its loss is a mean over positions."""

import torch
from torch import nn
from torch.nn import functional as F

TRUTH = {"regime": ("memory", "overhead"), "remedy": ("vectorise",)}


class Tagger(nn.Module):
    def __init__(self, width=64, tags=12):
        super().__init__()
        self.words = nn.Embedding(300, width)
        self.mix = nn.Conv1d(width, width, 5, padding=2)
        self.head = nn.Linear(width, tags)

    def features(self, words):
        return self.mix(self.words(words).transpose(1, 2)).relu().transpose(1, 2)

    def loss(self, words, tags):
        features, losses = self.features(words), []
        for place in range(words.shape[1]):
            losses.append(F.cross_entropy(self.head(features[:, place]), tags[:, place]))
        return torch.stack(losses).mean()


class TaggerAtOnce(Tagger):
    def loss(self, words, tags):
        return F.cross_entropy(self.head(self.features(words)).flatten(0, 1), tags.flatten())


def _step(tagger):
    torch.manual_seed(0)
    model = tagger()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, foreach=True)
    words, tags = torch.randint(0, 300, (24, 160)), torch.randint(0, 12, (24, 160))

    def step():
        loss = model.loss(words, tags)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def make_step():
    return _step(Tagger)


def make_step_fixed():
    return _step(TaggerAtOnce)
