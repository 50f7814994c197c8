"""Experts on different ranks: counts are exchanged first, tokens then by an all-to-all of uneven parts."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

width, hidden, experts, chosen, tokens = 512, 1024, 16, 2, 4096


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, sent, received):
        ctx.sizes = sent, received
        out = x.new_empty(sum(received), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), received, sent)
        return out

    @staticmethod
    def backward(ctx, gradient):
        sent, received = ctx.sizes
        out = gradient.new_empty(sum(sent), gradient.shape[1])
        dist.all_to_all_single(out, gradient.contiguous(), sent, received)
        return out, None, None


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.world = dist.get_world_size()
        self.local = experts // self.world
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(self.local, width, hidden) * 0.02)
        self.down = nn.Parameter(torch.randn(self.local, hidden, width) * 0.02)

    def forward(self, x):
        weights, places = self.router(x).softmax(-1).topk(chosen, -1)
        counts = torch.bincount(places.flatten(), minlength=experts)
        order = places.flatten().argsort(stable=True)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        sent = counts.view(self.world, -1).sum(1).tolist()
        received = arriving.view(self.world, -1).sum(1).tolist()
        moved = Exchange.apply(x[order // chosen], sent, received)
        kind = torch.arange(experts, device=x.device) % self.local
        kind = torch.repeat_interleave(kind, arriving, output_size=sum(received))
        by_expert = kind.argsort(stable=True)
        parts = moved[by_expert].split(arriving.view(self.world, -1).sum(0).tolist())
        done = torch.cat([F.silu(part @ self.up[n]) @ self.down[n] for n, part in enumerate(parts)])
        back = Exchange.apply(torch.empty_like(done).index_copy(0, by_expert, done), received, sent)
        return torch.zeros_like(x).index_add(0, order // chosen, back * weights.flatten()[order, None])


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = nn.Sequential(*(Experts() for _ in range(2))).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(6):
    x = torch.randn(tokens, width, device="cuda")
    loss = F.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    for name, parameter in model.named_parameters():
        if "router" in name:
            dist.all_reduce(parameter.grad)
    optimizer.step()
    print(f"rank {dist.get_rank()} step {step}: loss {loss.item():.4f}")
dist.destroy_process_group()
