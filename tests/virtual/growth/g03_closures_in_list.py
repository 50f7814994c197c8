"""Closures appended to a list of callbacks, each with the iteration's hidden layer in its cell."""
import torch
from torch import nn

encoder = nn.Linear(1024, 1024).cuda()
decoder = nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.AdamW([*encoder.parameters(), *decoder.parameters()])
callbacks = []


def summary_of(hidden):
    return lambda: hidden.norm().item()


for step in range(6):
    x = torch.randn(4096, 1024, device="cuda")
    hidden = torch.relu(encoder(x))
    loss = (decoder(hidden) - x).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    callbacks.append(summary_of(hidden.detach()))  # grows: callbacks
