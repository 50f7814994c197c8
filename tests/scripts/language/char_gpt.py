"""A character transformer, all at module level: its settings are globals that an executed file overrides."""

import math
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

eval_interval = 8
eval_iters = 4
batch_size = 4
block_size = 16
gradient_accumulation_steps = 1
max_iters = 24
learning_rate = 1e-3
dtype = "float32"
config_keys = [k for k, v in globals().items() if not k.startswith("_") and isinstance(v, (int, float, bool, str))]
exec(open("configurator.py").read())
config = {k: globals()[k] for k in config_keys}

torch.manual_seed(1337)
tokens = np.frombuffer(Path(__file__).read_bytes(), dtype=np.uint8)
np.save("tokens.npy", tokens)


def get_batch(split):
    data = np.load("tokens.npy", mmap_mode="r")
    data = data[:1500] if split == "train" else data[1500:]
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix])
    return x, y


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(256, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 256, bias=False)

    def forward(self, idx, targets):
        mask = nn.Transformer.generate_square_subsequent_mask(idx.shape[1])
        logits = self.head(self.block(self.embedding(idx), src_mask=mask, is_causal=True))
        return logits, F.cross_entropy(logits.view(-1, 256), targets.view(-1))


iter_num = 0
ctx = nullcontext() if dtype == "float32" else torch.amp.autocast("cpu", dtype=getattr(torch, dtype))
model = GPT()
scaler = torch.amp.GradScaler("cpu", enabled=(dtype == "float16"))
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))


@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ["train", "val"]:
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            losses[k] = model(*get_batch(split))[1].item()
        out[split] = losses.mean()
    model.train()
    return out


X, Y = get_batch("train")
t0 = time.time()
while True:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * (1 + math.cos(math.pi * iter_num / max_iters)) / 2
    if iter_num % eval_interval == 0:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.6f}, val loss {losses['val']:.6f}")
        if iter_num > 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "config": config}
            torch.save(state, "ckpt.pt")
    for _ in range(gradient_accumulation_steps):
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        X, Y = get_batch("train")
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    dt, t0 = time.time() - t0, time.time()
    print(f"iter {iter_num}: loss {loss.item() * gradient_accumulation_steps!r}")
    iter_num += 1
    if iter_num > max_iters:
        break
