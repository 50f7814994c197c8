"""The peak comes before the loop: a covariance of all the features, freed before training."""
import torch
from torch import nn

# features 200_000 * 16384 * 4 = 13_107_200_000 bytes; centered, as much again; beside them the mean
# (65_536), the product (16384 * 16384 * 4 = 1 GiB) and the product divided (1 GiB): 28_361_949_184.
features = torch.randn(200_000, 16384, device="cuda")
mean = features.mean(dim=0)
centered = features - mean
covariance = centered.t() @ centered / len(features)
scale = covariance.diagonal().clone().rsqrt()
del features, centered, covariance

model = nn.Sequential(nn.Linear(16384, 1024), nn.ReLU(), nn.Linear(1024, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(5):
    x = (torch.randn(1024, 16384, device="cuda") - mean) * scale
    y = torch.randint(0, 10, (1024,), device="cuda")
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
