"""Continues melodies with a recurrent cell; every melody has its own state."""

import torch
from torch import nn

TRUTH = {"regime": ("overhead",), "remedy": "vectorise"}


class Composer(nn.Module):
    def __init__(self, notes=48, width=64):
        super().__init__()
        self.embed, self.cell, self.out = nn.Embedding(notes, width), nn.GRUCell(width, width), nn.Linear(width, notes)
        self.width = width

    def one(self, melody):
        state = torch.zeros(1, self.width)
        for note in melody:
            state = self.cell(self.embed(note).unsqueeze(0), state)
        return self.out(state).squeeze(0)

    def each(self, melodies):
        return torch.stack([self.one(melody) for melody in melodies])

    def together(self, melodies):
        state = torch.zeros(len(melodies), self.width)
        for notes in melodies.T:
            state = self.cell(self.embed(notes), state)
        return self.out(state)


def _step(way):
    torch.manual_seed(0)
    composer, melodies = Composer().eval(), torch.randint(0, 48, (20, 40))
    play = getattr(composer, way)
    return torch.no_grad()(lambda: play(melodies).log_softmax(-1))


def make_step():
    return _step("each")


def make_step_fixed():
    return _step("together")
