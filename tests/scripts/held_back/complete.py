"""Generation with a cache under inference_mode: a prefill of many tokens, then one token a call, for five prompts."""

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x, cache):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        k, v = (k, v) if cache is None else (torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        return self.out(mixed.transpose(1, 2).flatten(2)), (k, v)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(100, 32), nn.Linear(32, 100)
        self.layers = nn.ModuleList(Attention() for _ in range(2))

    def forward(self, ids, caches):
        x, kept = self.embedding(ids), []
        for layer, cache in zip(self.layers, caches, strict=True):
            y, cache = layer(x, cache)
            x = x + y
            kept.append(cache)
        return self.head(x), kept

    def generate(self, ids, n):
        caches, given = [None, None], ids
        for _ in range(n):
            logits, caches = self(given, caches)
            given = logits[:, -1].argmax(-1, keepdim=True)
            ids = torch.cat((ids, given), 1)
        return ids


if __name__ == "__main__":
    torch.manual_seed(3)
    model = Model().eval()
    with torch.inference_mode():
        for length in (20, 35, 12, 50, 8):
            print(model.generate(torch.randint(0, 100, (1, length)), 30)[0, length:].tolist())
