"""A GPT-2 of 124 M parameters: autocast, gradient accumulation, fused AdamW, settings by exec of sys.argv."""

import contextlib
import math
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

layers, heads, width, vocab, context = 12, 12, 768, 50304, 1024
batch, accumulation, steps, compile = 8, 4, 6, False
device, dtype = "cuda", "bfloat16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "float16"
exec("\n".join(argument.lstrip("-") for argument in sys.argv[1:]))

torch.manual_seed(1337)
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True
context_manager = (
    torch.amp.autocast(device_type="cuda", dtype=getattr(torch, dtype))
    if "cuda" in device
    else contextlib.nullcontext()
)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = (y.view(b, t, heads, c // heads).transpose(1, 2) for y in self.qkv(x).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).contiguous().view(b, t, c))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.attention, self.ln2 = (
            nn.LayerNorm(width, bias=False),
            Attention(),
            nn.LayerNorm(width, bias=False),
        )
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        x = x + self.attention(self.ln1(x))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks, self.ln = nn.ModuleList(Block() for _ in range(layers)), nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, vocab, bias=False)
        self.tokens.weight = self.head.weight
        self.apply(self.init)

    def init(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.ln(x)).view(-1, vocab), targets.view(-1))


data = torch.randint(vocab, (batch * context * 8 + 1,))


def get_batch():
    starts = torch.randint(len(data) - context, (batch,))
    x = torch.stack([data[i : i + context] for i in starts])
    y = torch.stack([data[i + 1 : i + 1 + context] for i in starts])
    if "cuda" in device:
        return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
    return x, y


model = GPT().to(device)
scaler = torch.amp.GradScaler("cuda", enabled=dtype == "float16")
decayed = [p for p in model.parameters() if p.dim() >= 2]
plain = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
    lr=6e-4,
    betas=(0.9, 0.95),
    fused="cuda" in device,
)
if compile:
    model = torch.compile(model)
x, y = get_batch()
for step in range(steps):
    began = time.time()
    for group in optimizer.param_groups:
        group["lr"] = 6e-4 * 0.5 * (1 + math.cos(math.pi * step / steps))
    for _ in range(accumulation):
        with context_manager:
            loss = model(x, y) / accumulation
        x, y = get_batch()
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    print(f"iter {step}: loss {loss.item() * accumulation:.4f}, {1000 * (time.time() - began):.1f} ms")
print(f"peak {torch.cuda.max_memory_allocated() / 1e9:.2f} GB")
