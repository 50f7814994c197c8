"""Reads receipts: words and prices are cut out and numbered while batches are put together."""

import random
import re

import torch
from torch import nn
from torch.utils.data import DataLoader

TRUTH = {"regime": ("idle", "overhead"), "remedy": ("loader", "host-code")}

PARTS = re.compile(r"(?P<price>\d+[.,]\d\d)|(?P<word>[A-Za-z]+)|(?P<sign>[^\s\w])")


def receipts(count=64, lines=25):
    dice = random.Random(0)
    goods = ["Milk", "Bread 2x", "Tea*", "Rice (1kg)", "Coffee", "Apples red", "Soap"]
    return [
        "\n".join(f"{dice.choice(goods)}  {dice.randint(0, 30)}.{dice.randint(10, 99)}" for _ in range(lines))
        for _ in range(count)
    ]


def encode(text, length=96):
    ids = []
    for part in PARTS.finditer(text):
        if part.lastgroup == "price":
            ids.append(500 + int(float(part.group().replace(",", "."))))
        else:
            ids.append(1 + sum(map(ord, part.group().lower())) % 499)
    return (ids + [0] * length)[:length]


def put_together(texts):
    return torch.tensor([encode(text) for text in texts])


def _step(encoded):
    torch.manual_seed(0)
    texts = receipts()
    data = [torch.tensor(encode(text)) for text in texts] if encoded else texts
    loader = DataLoader(data, batch_size=16, collate_fn=torch.stack if encoded else put_together)
    embed, head = nn.Embedding(600, 48), nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 5))
    optimizer = torch.optim.SGD([*embed.parameters(), *head.parameters()], lr=0.01)

    def epoch():
        for tokens in loader:
            loss = head(embed(tokens).mean(1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.detach()

    return epoch


def make_step():
    return _step(encoded=False)


def make_step_fixed():
    return _step(encoded=True)
