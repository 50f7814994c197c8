"""The running total of a validation loss keeps the graph of each forward pass."""
import torch
import torch.nn.functional as F
from torch import nn

model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters())
total = 0.0

for step in range(6):
    x = torch.randn(1024, 512, device="cuda")
    y = torch.randint(0, 10, (1024,), device="cuda")
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    x_val = torch.randn(8192, 512, device="cuda")
    y_val = torch.randint(0, 10, (8192,), device="cuda")
    val_loss = F.cross_entropy(model(x_val), y_val)
    total += val_loss  # grows: total
