"""A character model as the lectures write it: a list of heads, each with its own three maps."""

import torch
from torch import nn

TRUTH = {"regime": ("overhead", "latency"), "remedy": ("batch-products", "vectorise")}


class Head(nn.Module):
    def __init__(self, width, size, block):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(width, size, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(block, block)))

    def forward(self, x):
        length = x.shape[1]
        keys, queries = self.key(x), self.query(x)
        scores = queries @ keys.transpose(-2, -1) * keys.shape[-1] ** -0.5
        scores = scores.masked_fill(self.tril[:length, :length] == 0, float("-inf"))
        return scores.softmax(-1) @ self.value(x)


class Heads(nn.Module):
    def __init__(self, width, heads, block):
        super().__init__()
        self.heads = nn.ModuleList(Head(width, width // heads, block) for _ in range(heads))
        self.out = nn.Linear(width, width)

    def forward(self, x):
        return self.out(torch.cat([head(x) for head in self.heads], -1))


class HeadsAtOnce(nn.Module):
    """The same maps as one, all heads in a dimension of the batch."""

    def __init__(self, heads):
        super().__init__()
        maps = [[getattr(head, name).weight for head in heads.heads] for name in ("query", "key", "value")]
        self.maps = nn.Parameter(torch.cat([torch.cat(weights) for weights in maps]).detach())
        self.count, self.out = len(heads.heads), heads.out
        self.register_buffer("tril", heads.heads[0].tril)

    def forward(self, x):
        batch, length, width = x.shape
        parts = nn.functional.linear(x, self.maps).view(batch, length, 3, self.count, -1).permute(2, 0, 3, 1, 4)
        queries, keys, values = parts.unbind()
        scores = queries @ keys.transpose(-2, -1) * keys.shape[-1] ** -0.5
        scores = scores.masked_fill(self.tril[:length, :length] == 0, float("-inf"))
        return self.out((scores.softmax(-1) @ values).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads, block):
        super().__init__()
        self.attention, self.norms = Heads(width, heads, block), nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.feed(self.norms[1](x))


class Poet(nn.Module):
    def __init__(self, width=64, heads=16, block=24):
        super().__init__()
        self.letters, self.places = nn.Embedding(60, width), nn.Embedding(block, width)
        self.blocks = nn.Sequential(*(Block(width, heads, block) for _ in range(3)))
        self.head = nn.Linear(width, 60)

    def forward(self, letters):
        return self.head(self.blocks(self.letters(letters) + self.places.weight[: letters.shape[1]]))


def _step(at_once):
    torch.manual_seed(0)
    model = Poet()
    if at_once:
        for block in model.blocks:
            block.attention = HeadsAtOnce(block.attention)
    letters = torch.randint(0, 60, (2, 24))

    def step():
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(letters[:, :-1]).flatten(0, 1), letters[:, 1:].flatten())
        loss.backward()
        return loss.detach()

    return step


def make_step():
    return _step(False)


def make_step_fixed():
    return _step(True)
