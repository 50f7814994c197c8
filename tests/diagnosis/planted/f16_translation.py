"""Trains a translator with additive attention, word after word with the words that are right."""

import torch
from torch import nn

TRUTH = {"regime": ("compute", "memory"), "remedy": ("repeated-work",)}


class Additive(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.of_source, self.of_state = nn.Linear(width, width), nn.Linear(width, width)
        self.score = nn.Linear(width, 1)

    def prepare(self, source):
        return source

    def keys(self, prepared):
        return self.of_source(prepared)

    def forward(self, state, source, prepared):
        energy = self.score(torch.tanh(self.keys(prepared) + self.of_state(state).unsqueeze(1))).squeeze(-1)
        return torch.bmm(energy.softmax(-1).unsqueeze(1), source).squeeze(1)


class AdditivePrepared(Additive):
    def prepare(self, source):
        return self.of_source(source)

    def keys(self, prepared):
        return prepared


class Translator(nn.Module):
    def __init__(self, attention, width=192, words=80):
        super().__init__()
        self.source, self.target = nn.Embedding(words, width), nn.Embedding(words, width)
        self.encoder, self.cell = nn.GRU(width, width, batch_first=True), nn.GRUCell(2 * width, width)
        self.attention, self.head = attention(width), nn.Linear(width, words)

    def forward(self, said, wanted):
        source, state = self.encoder(self.source(said))
        state, prepared, states = state[0], self.attention.prepare(source), []
        for word in self.target(wanted).unbind(1):
            state = self.cell(torch.cat([word, self.attention(state, source, prepared)], -1), state)
            states.append(state)
        return self.head(torch.stack(states, 1))


def _step(attention):
    torch.manual_seed(0)
    model = Translator(attention)
    said, wanted = torch.randint(0, 80, (8, 32)), torch.randint(0, 80, (8, 25))

    def step():
        model.zero_grad()
        scores = model(said, wanted[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), wanted[:, 1:].flatten())
        loss.backward()
        return loss.detach()

    return step


def make_step():
    return _step(Additive)


def make_step_fixed():
    return _step(AdditivePrepared)
