"""DDP that accumulates under no_sync, compresses gradients by a hook, and gathers objects of all ranks."""

import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP

world = dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", 1))
dist.init_process_group(backend="nccl")
assert world == dist.get_world_size()
rank, device = dist.get_rank(), f"cuda:{os.environ['LOCAL_RANK']}"
torch.cuda.set_device(device)
settings = [{"width": 1024, "seed": 7} if rank == 0 else None]
dist.broadcast_object_list(settings, src=0)
width = settings[0]["width"]
model = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(6))).to(device)
model = DDP(model, device_ids=[torch.cuda.current_device()], gradient_as_bucket_view=True)
model.register_comm_hook(state=None, hook=default_hooks.bf16_compress_hook)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
accumulation = 4
for step in range(5):
    for micro in range(accumulation):
        x = torch.randn(64, width, device=device)
        with model.no_sync() if micro < accumulation - 1 else contextlib.nullcontext():
            (model(x).square().mean() / accumulation).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    gathered = [None] * world
    dist.all_gather_object(gathered, {"rank": rank, "step": step})
    if rank == 0:
        print(f"step {step}: heard of {len(gathered)} ranks")
dist.barrier(device_ids=[int(os.environ["LOCAL_RANK"])])
dist.destroy_process_group()
