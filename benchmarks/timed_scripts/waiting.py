"""Steps of 20 ms that wait 80 ms each for their batch: the data set sleeps."""

import time

import torch
from stamps import Stamps
from torch import nn

stamps = Stamps()
torch.manual_seed(0)
torch.set_num_threads(1)


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 4 * 40

    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.full((24, 512), float(index)), torch.zeros(24, dtype=torch.long)


model = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = iter(torch.utils.data.DataLoader(Slow(), batch_size=4))
for _ in range(40):
    stamps.asks()
    x, y = next(loader)
    stamps.begins()
    loss = nn.functional.cross_entropy(model(x.flatten(0, 1)), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    stamps.ended()
print(loss.item())
stamps.write()
