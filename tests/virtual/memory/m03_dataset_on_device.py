"""The whole data set lives on the device; each batch is an indexed copy of some rows."""
import torch
import torch.nn.functional as F
from torch import nn

# 2_000_000 images of 3 * 32 * 32 floats: 2e6 * 3072 * 4 = 24.576e9 bytes, labels 16e6.
images = torch.randn(2_000_000, 3, 32, 32, device="cuda")
labels = torch.randint(0, 10, (2_000_000,), device="cuda")
model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 512), nn.ReLU(), nn.Linear(512, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

order = torch.randperm(len(images), device="cuda")
for step in range(5):
    pick = order[step * 4096 : (step + 1) * 4096]
    loss = F.cross_entropy(model(images[pick]), labels[pick])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 2 == 0:
        print(f"{step}: {loss.item():.3f}")
