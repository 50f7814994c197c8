"""Takes fast kernels where they are installed: flash_attn, apex, bitsandbytes, xformers; else torch's own."""

import torch
import torch.nn.functional as F
from torch import nn

try:
    from apex.normalization import FusedLayerNorm as LayerNorm
except ImportError:
    from torch.nn import LayerNorm
try:
    import bitsandbytes as bnb

    AdamW = bnb.optim.AdamW8bit
except ImportError:
    AdamW = torch.optim.AdamW
try:
    from xformers.ops import memory_efficient_attention
except ImportError:
    memory_efficient_attention = None
try:
    from flash_attn import flash_attn_func
except ImportError:
    flash_attn_func = None


class Block(nn.Module):
    def __init__(self, width=1024, heads=16):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, LayerNorm(width), LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads).unbind(2)
        if memory_efficient_attention is not None:
            y = memory_efficient_attention(q, k, v)
        elif flash_attn_func is not None:
            y = flash_attn_func(q, k, v, causal=True)
        else:
            y = F.scaled_dot_product_attention(*(each.transpose(1, 2) for each in (q, k, v)), is_causal=True).transpose(
                1, 2
            )
        x = x + self.out(y.reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


model = nn.Sequential(*(Block() for _ in range(4))).to("cuda", torch.bfloat16)
optimizer = AdamW(model.parameters(), lr=1e-4)
for step in range(4):
    x = torch.randn(4, 512, 1024, device="cuda", dtype=torch.bfloat16)
    loss = model(x).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: {loss.item():.3f}")
print("attention:", "flash" if flash_attn_func is not None else "torch")
