"""Abstracts are cut into words and classified by a bag of embeddings."""

import random
import re

import torch
from torch import nn

TRUTH = {"regime": ("overhead", "idle"), "remedy": ("host-code", "loader")}

WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|\d+(?:\.\d+)?|[^\sa-z\d]")


class Vocabulary:
    def __init__(self, words):
        self.numbers = {word: i + 1 for i, word in enumerate(sorted(words))}

    def encode(self, text):
        return [self.numbers.get(word, 0) for word in WORD.findall(text.lower())]


def texts_of(count=96, length=120):
    dice = random.Random(0)
    words = [
        f"{dice.choice('BCDFG')}{dice.choice('aeiou')}{dice.choice('lmnrst')}{dice.choice('aeiou')}" for _ in range(400)
    ]
    return [" ".join(dice.choices([*words, "3.14,", "(see", "it's)"], k=length)) + "." for _ in range(count)]


def _step(encoded_before):
    torch.manual_seed(0)
    texts = texts_of()
    vocabulary = Vocabulary({word for text in texts for word in WORD.findall(text.lower())})
    encoded = [vocabulary.encode(text) for text in texts]
    bag, head = nn.EmbeddingBag(1000, 64), nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 20))

    @torch.no_grad()
    def step():
        ids = encoded if encoded_before else [vocabulary.encode(text) for text in texts]
        starts = torch.tensor([0, *(len(row) for row in ids[:-1])]).cumsum(0)
        return head(bag(torch.tensor([number for row in ids for number in row]), starts)).log_softmax(-1)

    return step


def make_step():
    return _step(encoded_before=False)


def make_step_fixed():
    return _step(encoded_before=True)
