"""A contrastive loss over all ranks' features, gathered with their gradients by torch.distributed.nn."""

import os

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
import torch.nn.functional as F
from torch import nn

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
batch, width = 256, 512


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(2048, 1024), nn.GELU(), nn.Linear(1024, width))
        self.text = nn.Sequential(nn.Linear(768, 1024), nn.GELU(), nn.Linear(1024, width))
        self.scale = nn.Parameter(torch.tensor(2.65))

    def forward(self, image, text):
        return F.normalize(self.image(image), dim=-1), F.normalize(self.text(text), dim=-1), self.scale.exp()


def gathered(features, with_gradient=True):
    if with_gradient:
        return torch.cat(dist_nn.all_gather(features), dim=0)
    parts = [torch.zeros_like(features) for _ in range(world)]
    dist.all_gather(parts, features)
    parts[rank] = features
    return torch.cat(parts, dim=0)


model = nn.parallel.DistributedDataParallel(Towers().to(device), device_ids=[device.index])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
labels = torch.arange(batch, device=device) + batch * rank
for step in range(6):
    image, text = torch.randn(batch, 2048, device=device), torch.randn(batch, 768, device=device)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        image, text, scale = model(image, text)
        loss = (
            F.cross_entropy(scale * image @ gathered(text).T, labels)
            + F.cross_entropy(scale * text @ gathered(image, with_gradient=False).T, labels)
        ) / 2
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    total = dist_nn.all_reduce(loss.detach()) / world
    if rank == 0:
        print(f"step {step}: loss {total.item():.4f}")
dist.destroy_process_group()
