"""A registered buffer and a plain attribute, both quadratic in the length, outweigh the weights."""
import torch
from torch import nn


class Mixer(nn.Module):
    def __init__(self, length, width):
        super().__init__()
        self.project = nn.Linear(width, width)
        self.register_buffer("mask", torch.ones(length, length, dtype=torch.bool, device="cuda").tril())
        # A plain attribute: not in the state dict, made on the device at once.
        self.bias = torch.zeros(length, length, device="cuda")

    def forward(self, x):
        scores = x @ x.transpose(0, 1) + self.bias
        scores = scores.masked_fill(~self.mask, float("-inf"))
        return self.project(scores.softmax(dim=-1) @ x)


model = nn.ModuleList(Mixer(16384, 256) for _ in range(3)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for step in range(5):
    x = torch.randn(16384, 256, device="cuda")
    h = x
    for layer in model:
        h = layer(h)
    loss = (h - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
