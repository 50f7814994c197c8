"""Validation without no_grad: the variable `val_loss` holds its graph through the next training step."""
import torch
import torch.nn.functional as F
from torch import nn

model = nn.Sequential(*[nn.Sequential(nn.Linear(2048, 8192), nn.GELU(), nn.Linear(8192, 2048)) for _ in range(4)]).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

for step in range(5):
    x = torch.randn(16384, 2048, device="cuda")
    loss = F.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    x_val = torch.randn(16384, 2048, device="cuda")
    val_loss = F.mse_loss(model(x_val), x_val)
    print(f"{step}: {loss.item():.4f} {val_loss.item():.4f}")
