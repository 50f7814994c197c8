"""A function adds to a list that is global to the module."""
import torch
from torch import nn

RECENT = []


def train_step(model, optimizer, x):
    global RECENT
    out = model(x)
    loss = (out - x).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    RECENT = RECENT + [x]  # grows: RECENT
    return loss.item()


model = nn.Linear(2048, 2048).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(6):
    print(train_step(model, optimizer, torch.randn(1024, 2048, device="cuda")))
