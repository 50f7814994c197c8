"""Trains a recognizer of phonemes with CTC, and reports its error rate beside the loss."""

import torch
from torch import nn

TRUTH = {"regime": ("overhead", "idle"), "remedy": ("host-code",)}


class Recognizer(nn.Module):
    def __init__(self, width=64, phonemes=40):
        super().__init__()
        self.front = nn.Conv1d(40, width, 5, stride=2, padding=2)
        self.middle, self.head = nn.Conv1d(width, width, 9, padding=4), nn.Linear(width, phonemes)

    def forward(self, speech):
        return self.head(self.middle(self.front(speech).relu()).relu().transpose(1, 2)).log_softmax(-1)


def distance(said, heard):
    row = list(range(len(heard) + 1))
    for i, one in enumerate(said, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(heard, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (one != other))
    return row[-1]


def collapsed(path):
    kept, last = [], None
    for symbol in path:
        if symbol not in (last, 0):
            kept.append(symbol)
        last = symbol
    return kept


class ErrorRate:
    def __init__(self, every):
        self.every, self.count, self.rate = every, 0, float("nan")

    def __call__(self, scores, targets):
        if self.count % self.every == 0:
            heard = [collapsed(path) for path in scores.argmax(-1).tolist()]
            said = targets.tolist()
            self.rate = sum(distance(*pair) for pair in zip(said, heard)) / sum(map(len, said))
        self.count += 1
        return self.rate


def _step(every):
    torch.manual_seed(0)
    model, error_rate = Recognizer(), ErrorRate(every)
    optimizer = torch.optim.SGD(model.parameters(), 1e-5, foreach=True)
    speech, targets = torch.randn(8, 40, 200), torch.randint(1, 40, (8, 45))
    lengths, sizes = torch.full((8,), 100), torch.full((8,), 45)

    def step():
        scores = model(speech)
        loss = nn.functional.ctc_loss(scores.transpose(0, 1), targets, lengths, sizes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        error_rate(scores.detach(), targets)
        return loss.detach()

    return step


def make_step():
    return _step(1)


def make_step_fixed():
    return _step(100)
