"""An embedding with sparse=False: a gradient as large as the table, though a batch touches few rows."""
import torch
from torch import nn

# 20_000_000 * 128 * 4 = 10.24e9 bytes: the table, its gradient, the momentum.
table = nn.Embedding(20_000_000, 128, device="cuda")
tower = nn.Sequential(nn.Linear(26 * 128, 512), nn.ReLU(), nn.Linear(512, 1)).cuda()
optimizer = torch.optim.SGD([*table.parameters(), *tower.parameters()], lr=0.1, momentum=0.9)
criterion = nn.BCEWithLogitsLoss()

for step in range(5):
    ids = torch.randint(0, 20_000_000, (2048, 26), device="cuda")
    clicks = torch.randint(0, 2, (2048, 1), device="cuda").float()
    loss = criterion(tower(table(ids).flatten(1)), clicks)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
