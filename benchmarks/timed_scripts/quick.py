"""3,000 steps of less than a millisecond: an embedding and AdamW, with an evaluation before every 300th."""

import torch
from stamps import Stamps
from torch import nn

stamps = Stamps()
torch.manual_seed(1337)
torch.set_num_threads(1)
data = torch.randint(0, 65, (4000,))


def batch():
    ix = torch.randint(len(data) - 8, (32,))
    return torch.stack([data[i : i + 8] for i in ix]), torch.stack([data[i + 1 : i + 9] for i in ix])


class Bigram(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(65, 65)

    def forward(self, idx, targets):
        logits = self.table(idx)
        return logits, nn.functional.cross_entropy(logits.view(-1, 65), targets.view(-1))


model = Bigram()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for it in range(3000):
    if it % 300 == 0:
        with torch.no_grad():
            losses = [model(*batch())[1].item() for _ in range(40)]
    xb, yb = batch()
    stamps.begins()
    logits, loss = model(xb, yb)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    stamps.ended()
print(loss.item())
stamps.write()
