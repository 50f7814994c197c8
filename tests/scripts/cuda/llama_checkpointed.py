"""A Llama of 0.5 G parameters in bfloat16: RMSNorm, rotary places, grouped heads, each layer checkpointed."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--width", type=int, default=1536)
parser.add_argument("--seq", type=int, default=2048)
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--no-checkpoint", action="store_true")
parser.add_argument("--compile", action="store_true")
args = parser.parse_args()
heads, groups, size, vocab = args.width // 64, args.width // 256, 64, 32000


def rotary(length, device):
    angles = torch.outer(
        torch.arange(length, device=device), 10000 ** (-torch.arange(0, size, 2, device=device) / size)
    )
    return torch.polar(torch.ones_like(angles), angles)


def turned(x, turns):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[:, None]).flatten(3).type_as(x)


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(args.width))

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        linear = lambda i, o: nn.Linear(i, o, bias=False)
        self.norm1, self.norm2 = RMSNorm(), RMSNorm()
        self.q, self.k, self.v = (
            linear(args.width, heads * size),
            linear(args.width, groups * size),
            linear(args.width, groups * size),
        )
        self.o = linear(heads * size, args.width)
        self.gate, self.up, self.down = linear(args.width, 4096), linear(args.width, 4096), linear(4096, args.width)

    def forward(self, x, turns):
        b, t, _ = x.shape
        y = self.norm1(x)
        q, k = turned(self.q(y).view(b, t, heads, size), turns), turned(self.k(y).view(b, t, groups, size), turns)
        v = self.v(y).view(b, t, groups, size)
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True
        )
        x = x + self.o(y.transpose(1, 2).reshape(b, t, -1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layers = nn.Embedding(vocab, args.width), nn.ModuleList(Layer() for _ in range(args.layers))
        self.norm, self.head = RMSNorm(), nn.Linear(args.width, vocab, bias=False)

    def forward(self, tokens):
        x, turns = self.embed(tokens), rotary(tokens.shape[1], tokens.device)
        for layer in self.layers:
            x = layer(x, turns) if args.no_checkpoint else checkpoint(layer, x, turns, use_reentrant=False)
        return self.head(self.norm(x))


model = Llama().to("cuda", torch.bfloat16)
run = torch.compile(model) if args.compile else model
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(args.steps):
    tokens = torch.randint(vocab, (args.batch, args.seq + 1), device="cuda")
    logits = run(tokens[:, :-1])
    loss = F.cross_entropy(logits.float().reshape(-1, vocab), tokens[:, 1:].reshape(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.3f} peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")
