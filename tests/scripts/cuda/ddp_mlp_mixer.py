"""DistributedDataParallel by torchrun's environment, nccl, a sampler, losses reduced over the ranks."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
torch.manual_seed(0)


class Mixer(nn.Module):
    def __init__(self, width, tokens):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Model(nn.Module):
    def __init__(self, width=768, layers=12):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.mixers = nn.Sequential(*(Mixer(width, 196) for _ in range(layers)))
        self.head = nn.Linear(width, 1000)

    def forward(self, images):
        return self.head(self.mixers(self.patches(images).flatten(2).transpose(1, 2)).mean(1))


data = TensorDataset(torch.rand(256, 3, 224, 224), torch.randint(1000, (256,)))
sampler = DistributedSampler(data, num_replicas=world, rank=rank, shuffle=True)
loader = DataLoader(data, 32, sampler=sampler, pin_memory=True)
model = DDP(Model().to(local), device_ids=[local])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for epoch in range(2 * world):
    sampler.set_epoch(epoch)
    for images, labels in loader:
        images, labels = images.to(local, non_blocking=True), labels.to(local, non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total, op=dist.ReduceOp.AVG)
    if rank == 0:
        print(f"epoch {epoch}: loss {total.item():.4f}")
dist.barrier()
dist.destroy_process_group()
