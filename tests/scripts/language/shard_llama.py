"""Two micro-batches a step from an IterableDataset made anew for each split; the model keeps its loss."""

import random
import struct
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

max_iters = 20
eval_interval = 10
eval_iters = 3
batch_size = 4
max_seq_len = 16
dim = 16
gradient_accumulation_steps = 2
log_interval = 5
config_keys = [k for k, v in globals().items() if not k.startswith("_") and isinstance(v, (int, float, bool, str))]
exec(open("configurator.py").read())
config = {k: globals()[k] for k in config_keys}

torch.manual_seed(1337)
np.random.default_rng(7).integers(0, 256, 4000, dtype=np.uint16).tofile("shard0.bin")


class Tokens(torch.utils.data.IterableDataset):
    def __init__(self, split):
        super().__init__()
        self.split = split

    def __iter__(self):
        rng = random.Random(42)
        shard = np.memmap("shard0.bin", dtype=np.uint16, mode="r")
        shard = shard[1000:] if self.split == "train" else shard[:1000]
        while True:
            ixs = list(range(len(shard) // max_seq_len - 1))
            rng.shuffle(ixs)
            for ix in ixs:
                chunk = torch.from_numpy(shard[ix * max_seq_len : (ix + 1) * max_seq_len + 1].astype(np.int64))
                yield chunk[:-1], chunk[1:]


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class Llama(nn.Module):
    last_loss: torch.Tensor | None

    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(256, dim)
        self.norm, self.up, self.down = Norm(), nn.Linear(dim, 32), nn.Linear(32, dim)
        self.out = nn.Linear(dim, 256, bias=False)
        self.last_loss = None

    def forward(self, tokens, targets):
        h = self.tok(tokens)
        h = h + self.down(F.silu(self.up(self.norm(h))))
        logits = self.out(h)
        self.last_loss = F.cross_entropy(logits.view(-1, 256), targets.reshape(-1), ignore_index=-1)
        return logits


def batches(split):
    yield from torch.utils.data.DataLoader(Tokens(split), batch_size=batch_size, num_workers=0)


iter_batches = partial(batches)
model = Llama()
scaler = torch.amp.GradScaler("cpu", enabled=False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ["train", "val"]:
        batch_iter = iter_batches(split=split)
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            X, Y = next(batch_iter)
            model(X, Y)
            losses[k] = model.last_loss.item()
        out[split] = losses.mean()
    model.train()
    return out


def export(path):
    with open(path, "wb") as out:
        for p in model.parameters():
            flat = p.detach().reshape(-1).tolist()
            out.write(struct.pack(f"{len(flat)}f", *flat))


train_batches = iter_batches(split="train")
X, Y = next(train_batches)
for iter_num in range(max_iters + 1):
    if iter_num % eval_interval == 0:
        losses = estimate_loss()
        print(f"step {iter_num}: train {losses['train']:.6f} val {losses['val']:.6f}")
        if iter_num > 0:
            torch.save({"model": model.state_dict(), "config": config}, "ckpt.pt")
            export("model.bin")
    for _ in range(gradient_accumulation_steps):
        logits = model(X, Y)
        loss = model.last_loss / gradient_accumulation_steps
        X, Y = next(train_batches)
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if iter_num % log_interval == 0:
        print(f"{iter_num} | loss {loss.item() * gradient_accumulation_steps!r}")
