"""Writes songs note by note: two gated cells get what was drawn before and their own last state; all songs of a set go on side by side."""
import torch
import torch.nn as nn

TRUTH = {"healthy": True}

NOTES = 1024


class Composer(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.table = nn.Embedding(NOTES, width)
        self.first, self.second = nn.GRUCell(width, width), nn.GRUCell(width, width)
        self.out = nn.Linear(width, NOTES)

    def forward(self, note, a, b):
        a = self.first(torch.relu(self.table(note) + b), a)
        b = self.second(a, b)
        return self.out(b), a, b


@torch.inference_mode()
def compose(model, songs, length, g):
    a = torch.zeros(songs, 512)
    b = torch.zeros(songs, 512)
    note = torch.zeros(songs, dtype=torch.long)
    sheet = torch.empty(length, songs, dtype=torch.long)
    for t in range(length):
        logits, a, b = model(note, a, b)
        reach = logits.softmax(1).cumsum_(1)
        drawn = torch.rand(songs, 1, generator=g) * reach[:, -1:]
        note = torch.searchsorted(reach, drawn).squeeze(1).clamp_(max=NOTES - 1)
        sheet[t] = note
    return sheet.t()


def make_step():
    torch.manual_seed(71)
    model = Composer().eval()
    g = torch.Generator().manual_seed(72)

    def step():
        return compose(model, 256, 5, g)
    return step
