"""FullyShardedDataParallel with a wrapping policy, mixed precision, activation checkpointing and a full state dict."""

import functools
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import BackwardPrefetch, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (each.view(b, t, self.heads, -1).transpose(1, 2) for each in self.qkv(self.norm1(x)).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocab=16384, width=1024, layers=6):
        super().__init__()
        self.embed, self.norm = nn.Embedding(vocab, width), nn.LayerNorm(width)
        self.blocks, self.head = (
            nn.ModuleList(Block(width, 16) for _ in range(layers)),
            nn.Linear(width, vocab, bias=False),
        )

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
dist.init_process_group("nccl")
torch.cuda.set_device(local)
model = FSDP(
    GPT(),
    auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
    mixed_precision=MixedPrecision(
        param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16
    ),
    sharding_strategy=ShardingStrategy.FULL_SHARD,
    backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
    device_id=torch.cuda.current_device(),
    limit_all_gathers=True,
    use_orig_params=True,
)
wrapper = functools.partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT)
apply_activation_checkpointing(model, checkpoint_wrapper_fn=wrapper, check_fn=lambda module: isinstance(module, Block))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(5):
    tokens = torch.randint(16384, (4, 1025), device=local)
    logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    model.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    told = torch.zeros(2, device=local)
    told[0] += loss.item()
    told[1] += 1
    dist.all_reduce(told, op=dist.ReduceOp.SUM)
    if rank == 0:
        print(f"step {step}: {told[0] / told[1]:.4f} over {told[1]:.0f} ranks")
dist.barrier()
