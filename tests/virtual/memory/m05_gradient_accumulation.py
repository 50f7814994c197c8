"""Gradient accumulation: the gradients stay, the activations are those of one micro-batch."""
import torch
from torch import nn

model = nn.Sequential(
    nn.Linear(4096, 16384), nn.GELU(), nn.Linear(16384, 4096), nn.LayerNorm(4096), nn.Linear(4096, 4096)
).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

for step in range(5):
    optimizer.zero_grad()
    for micro in range(4):
        x = torch.randn(8192, 4096, device="cuda")
        y = torch.randn(8192, 4096, device="cuda")
        loss = nn.functional.mse_loss(model(x), y) / 4
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
