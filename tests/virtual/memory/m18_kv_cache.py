"""Decoding in inference_mode: the key-value cache is allocated in full and outweighs the weights."""
import torch
import torch.nn.functional as F
from torch import nn

layers, batch, heads, length, size, width = 8, 64, 16, 8192, 128, 2048
# cache: 2 * 8 * 64 * 16 * 8192 * 128 * 2 bytes = 32 GiB.
cache = torch.zeros(2, layers, batch, heads, length, size, dtype=torch.bfloat16, device="cuda")
qkv = nn.ModuleList(nn.Linear(width, 3 * width, bias=False) for _ in range(layers)).to("cuda", torch.bfloat16)
out = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers)).to("cuda", torch.bfloat16)
table = nn.Embedding(32000, width).to("cuda", torch.bfloat16)

token = torch.zeros(batch, dtype=torch.long, device="cuda")
with torch.inference_mode():
    for step in range(5):
        at = 4096 + step
        x = table(token)
        for i in range(layers):
            q, k, v = qkv[i](x).view(batch, 3, heads, size).unbind(1)
            cache[0, i, :, :, at], cache[1, i, :, :, at] = k, v
            seen = cache[:, i, :, :, : at + 1]
            a = F.scaled_dot_product_attention(q.unsqueeze(2), seen[0], seen[1])
            x = x + out[i](a.reshape(batch, width))
        token = (x @ table.weight.t()).argmax(dim=-1)
