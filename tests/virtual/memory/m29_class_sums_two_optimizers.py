"""Sums of features per class kept on the device, and two optimizers, one of them for learned centers."""
import torch
import torch.nn.functional as F
from torch import nn

classes, width = 100_000, 2048
# sums, centers: 100_000 * 2048 * 4 = 819.2e6 bytes each.
sums = torch.zeros(classes, width, device="cuda")
counts = torch.zeros(classes, device="cuda")
centers = nn.Parameter(torch.randn(classes, width, device="cuda"))
backbone = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, width)).cuda()
backbone_optimizer = torch.optim.AdamW(backbone.parameters(), lr=1e-3)
center_optimizer = torch.optim.SGD([centers], lr=0.5)

for step in range(5):
    x = torch.randn(4096, 4096, device="cuda")
    labels = torch.randint(0, classes, (4096,), device="cuda")
    features = backbone(x)
    loss = F.mse_loss(features, centers[labels])
    backbone_optimizer.zero_grad()
    center_optimizer.zero_grad()
    loss.backward()
    backbone_optimizer.step()
    center_optimizer.step()
    with torch.no_grad():
        sums.index_add_(0, labels, features)
        counts.index_add_(0, labels, torch.ones_like(labels, dtype=torch.float32))
