"""fully_shard over a mesh of two dimensions: shards within a node, copies between nodes; norms kept whole."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group("nccl", device_id=torch.device("cuda", local))
world, each = dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"])
mesh = init_device_mesh("cuda", (world // each, each), mesh_dim_names=("replicate", "shard"))
width, layers = 1024, 6


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


model = nn.Sequential(*(Block() for _ in range(layers)), nn.Linear(width, 1000)).to("cuda")
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for block in model[:-1]:
    fully_shard(block, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(6):
    x, y = torch.randn(64, width, device="cuda"), torch.randint(1000, (64,), device="cuda")
    loss = nn.functional.cross_entropy(model(x).float(), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(mean := loss.detach().clone(), op=dist.ReduceOp.AVG, group=mesh.get_group("replicate"))
    if dist.get_rank() == 0:
        print(f"step {step}: loss {mean.item():.4f} on {mesh}")
dist.destroy_process_group()
