"""Reviews of many lengths are rated one batch after the other by a compiled model."""

import torch
from torch import nn

TRUTH = {"regime": ("overhead", "memory"), "remedy": "recompiles"}


class Rater(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.embed, self.gate, self.score = nn.Embedding(300, width), nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, tokens):
        return self.rate(tokens)

    def rate(self, tokens):
        x = self.embed(tokens)
        for _ in range(2):
            h = x - x.mean(1, keepdim=True)
            h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)
            x = x + torch.tanh(h) * torch.sigmoid(self.gate(h)) - 0.1 * torch.sin(h) * torch.cos(2 * h)
        return self.score(x.amax(1)).squeeze(-1)


class FlexibleRater(Rater):
    def forward(self, tokens):
        return self.rate(tokens)


def _step(kind, **options):
    torch.manual_seed(0)
    model = torch.compile(kind().eval(), **options)
    batches = [torch.randint(0, 300, (1, length)) for length in range(10, 42)]

    @torch.no_grad()
    def step():
        return torch.cat([model(tokens) for tokens in batches])

    return step


def make_step():
    return _step(Rater, dynamic=False)


def make_step_fixed():
    return _step(FlexibleRater, dynamic=True)
