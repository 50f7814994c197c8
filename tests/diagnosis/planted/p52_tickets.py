"""Sorts tickets of a help desk; most are a line, a few are pages."""

import torch
from torch import nn

TRUTH = {"regime": ("compute", "memory"), "remedy": "padding-tokens"}


class Sorter(nn.Module):
    def __init__(self, words=800, width=64, padding=0):
        super().__init__()
        self.embed = nn.Embedding(words, width, padding_idx=padding)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.body, self.head, self.padding = (
            nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
            nn.Linear(width, 7),
            padding,
        )

    def forward(self, tokens):
        empty = tokens == self.padding
        x = self.body(self.embed(tokens), src_key_padding_mask=empty)
        return self.head(x.masked_fill(empty.unsqueeze(-1), 0).sum(1) / (~empty).sum(1, keepdim=True))


def tickets(count=8, longest=144):
    torch.manual_seed(0)
    tokens, lengths = torch.randint(1, 800, (count, longest)), torch.randint(8, 24, (count,))
    return tokens.masked_fill(torch.arange(longest) >= lengths.unsqueeze(1), 0)


def _step(trim):
    tokens = tickets()
    torch.manual_seed(0)
    sorter = Sorter()
    optimizer = torch.optim.SGD(sorter.parameters(), lr=0.01)

    def step():
        batch = tokens[:, : int((tokens != 0).sum(1).max())] if trim else tokens
        loss = nn.functional.cross_entropy(sorter(batch), torch.arange(8) % 7)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def make_step():
    return _step(trim=False)


def make_step_fixed():
    return _step(trim=True)
