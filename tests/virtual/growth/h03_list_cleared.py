"""Does not grow: the list is emptied at the end of each iteration."""
import torch
from torch import nn

model = nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.AdamW(model.parameters())
losses = []

for step in range(6):
    optimizer.zero_grad()
    for _ in range(3):
        x = torch.randn(2048, 1024, device="cuda")
        losses.append((torch.tanh(model(x)) - x).square().mean())
    torch.stack(losses).mean().backward()
    optimizer.step()
    losses.clear()
