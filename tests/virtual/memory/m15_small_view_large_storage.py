"""A view of a few rows keeps the storage of the whole table alive after the table's name is gone."""
import torch
from torch import nn

# table: 4_000_000 * 1024 * 2 = 8.192e9 bytes (float16); anchors: 16 rows of it, but a view.
table = torch.randn(4_000_000, 1024, device="cuda", dtype=torch.float16)
anchors = table[:16]
del table
model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024)).cuda().half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

for step in range(5):
    x = torch.randn(16384, 1024, device="cuda", dtype=torch.float16)
    scores = model(x) @ anchors.t()
    loss = -scores.float().log_softmax(dim=1)[:, 0].mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
