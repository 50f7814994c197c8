"""Tied weights: the embedding and the head are one tensor, with one gradient and one state."""
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.body = nn.Linear(width, width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(torch.tanh(self.body(self.embed(tokens))))


# 256_000 * 4096 * 4 = 4.194e9 bytes: the weight, exp_avg, exp_avg_sq; and, where the head's gradient (a
# transposed view, so not added to in place) meets the embedding's: both and their sum, 6 in all.
with torch.device("cuda"):
    model = Model(256_000, 4096)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

for step in range(5):
    tokens = torch.randint(0, 256_000, (2, 257), device="cuda")
    loss = F.cross_entropy(model(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
