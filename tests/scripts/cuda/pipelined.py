"""Four stages of torch.distributed.pipelining, 1F1B with eight micro-batches; each rank builds its own stage."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", rank=rank, world_size=world, device_id=device)
width, layers, vocab, batch, length, micro_batches = 512, 8, 1000, 32, 256, 8


class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(vocab, width) if rank == 0 else None
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, batch_first=True) for _ in range(layers // world)
        )
        self.head = nn.Linear(width, vocab) if rank == world - 1 else None

    def forward(self, x):
        x = self.embed(x) if self.embed is not None else x
        for block in self.blocks:
            x = block(x)
        return self.head(x) if self.head is not None else x


def loss_of(output, target):
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


model = Stage().to(device)
example = torch.zeros(batch // micro_batches, length, dtype=torch.long, device=device)
if rank:
    example = torch.zeros(batch // micro_batches, length, width, device=device)
stage = PipelineStage(model, rank, world, device, input_args=(example,))
schedule = Schedule1F1B(stage, micro_batches, loss_fn=loss_of)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(6):
    optimizer.zero_grad()
    if rank == 0:
        schedule.step(torch.randint(vocab, (batch, length), device=device))
    elif rank == world - 1:
        losses = []
        schedule.step(target=torch.randint(vocab, (batch, length), device=device), losses=losses)
        print(f"step {step}: loss {torch.stack(losses).mean().item():.4f}")
    else:
        schedule.step()
    optimizer.step()
dist.destroy_process_group()
