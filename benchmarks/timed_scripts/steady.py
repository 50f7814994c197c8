"""Steps of about 20 ms, and after every 20th an evaluation that takes as long as ten of them."""

import torch
from stamps import Stamps
from torch import nn

stamps = Stamps()
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x, y = torch.randn(96, 512), torch.randint(0, 10, (96,))
for it in range(200):
    stamps.begins()
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    stamps.ended()
    if it % 20 == 19:
        with torch.no_grad():
            print(it, sum(model(x).argmax(1).eq(y).sum().item() for _ in range(30)))
stamps.write()
