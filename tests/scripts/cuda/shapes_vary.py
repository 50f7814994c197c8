"""Batches of another length each step, by buckets, and a compiled model that is told that shapes vary."""

import random

import torch
from torch import nn

random.seed(0)


class Encoder(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.embed = nn.Embedding(30000, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 8, 2048, batch_first=True, norm_first=True) for _ in range(3)
        )
        self.head = nn.Linear(width, 2)

    def forward(self, ids, padding):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=padding)
        x = x.masked_fill(padding[..., None], 0).sum(1) / (~padding).sum(1, keepdim=True)
        return self.head(x)


model = torch.compile(Encoder().cuda(), dynamic=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
sentences = sorted(([random.randrange(1, 30000) for _ in range(random.randint(8, 200))] for _ in range(192)), key=len)
batches = [sentences[i : i + 32] for i in range(0, len(sentences), 32)]
for step, batch in enumerate(batches):
    longest = max(map(len, batch))
    ids = torch.tensor([each + [0] * (longest - len(each)) for each in batch], device="cuda")
    logits = model(ids, ids.eq(0))
    loss = nn.functional.cross_entropy(logits, torch.randint(2, (len(batch),), device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 2 == 0:
        print(f"step {step}: {tuple(ids.shape)} loss {loss.item():.3f}")
