"""A mesh of 4 x 2: FSDP2 across, tensor and sequence parallelism within, by parallelize_module and DTensor."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.head = width // heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (f(x).view(b, t, -1, self.head).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, -1))


class FeedForward(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(width, hidden), nn.Linear(hidden, width), nn.Linear(width, hidden)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention, self.feed_forward = Attention(width, 16), FeedForward(width, 4 * width)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Model(nn.Module):
    def __init__(self, vocab=8192, width=1024, layers=3):
        super().__init__()
        self.tok_embeddings, self.norm = nn.Embedding(vocab, width), nn.RMSNorm(width)
        self.layers, self.output = (
            nn.ModuleList(Layer(width) for _ in range(layers)),
            nn.Linear(width, vocab, bias=False),
        )

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


tp = 2
mesh = init_device_mesh("cuda", (8 // tp, tp), mesh_dim_names=("dp", "tp"))
assert mesh.get_coordinate() is not None
assert mesh["tp"].size() == tp
device = f"cuda:{dist.get_rank() % torch.cuda.device_count()}"
model = Model().to(device)
model = parallelize_module(
    model,
    mesh["tp"],
    {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    },
)
for layer in model.layers:
    plan = {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "attention.q": ColwiseParallel(),
        "attention.k": ColwiseParallel(),
        "attention.v": ColwiseParallel(),
        "attention.o": RowwiseParallel(output_layouts=Shard(1)),
        "ffn_norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "feed_forward.w1": ColwiseParallel(),
        "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
        "feed_forward.w3": ColwiseParallel(),
    }
    parallelize_module(layer, mesh["tp"], plan)
fully_shard(model, mesh=mesh["dp"])
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=True)
for step in range(5):
    torch.manual_seed(step + mesh["dp"].get_local_rank())
    tokens = torch.randint(8192, (4, 512), device=device)
    loss = model(tokens).float().logsumexp(-1).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} done on rank {dist.get_rank()}")
