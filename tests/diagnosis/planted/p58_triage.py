"""Grades patients' records and keeps score of every class."""

import torch
from torch import nn

TRUTH = {"regime": ("overhead",), "remedy": "host-code"}


class Score:
    def __init__(self, classes):
        self.classes, self.table = classes, [[0] * classes for _ in range(classes)]

    def add(self, found, right):
        for a, b in zip(found.tolist(), right.tolist(), strict=True):
            self.table[b][a] += 1

    def f1(self):
        scores = []
        for c in range(self.classes):
            hit = self.table[c][c]
            wrong = sum(self.table[other][c] for other in range(self.classes)) - hit
            missed = sum(self.table[c]) - hit
            scores.append(2 * hit / max(1, 2 * hit + wrong + missed))
        return torch.tensor(scores)


class TensorScore(Score):
    def add(self, found, right):
        pairs = torch.bincount(right * self.classes + found, minlength=self.classes**2)
        self.table = pairs.view(self.classes, self.classes).tolist()


def _step(kind):
    torch.manual_seed(0)
    model, records, grades = nn.Linear(12, 5), torch.randn(60_000, 12), torch.randint(0, 5, (60_000,))

    @torch.inference_mode()
    def step():
        score = kind(5)
        score.add(model(records).argmax(1), grades)
        return score.f1()

    return step


def make_step():
    return _step(Score)


def make_step_fixed():
    return _step(TensorScore)
