"""Adagrad makes its state when it is built, before the first step."""
import torch
from torch import nn

features = nn.Sequential(nn.Linear(20000, 8192), nn.ReLU(), nn.Linear(8192, 1)).cuda()
optimizer = torch.optim.Adagrad(features.parameters(), lr=0.01)
criterion = nn.BCEWithLogitsLoss()

for step in range(5):
    x = torch.rand(1024, 20000, device="cuda")
    y = torch.randint(0, 2, (1024, 1), device="cuda").float()
    optimizer.zero_grad()
    loss = criterion(features(x), y)
    loss.backward()
    optimizer.step()
