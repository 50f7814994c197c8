"""fully_shard with mixed precision over a mesh, transformers' Llama, gradients clipped, weights saved in shards."""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

rank = int(os.environ["RANK"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("shard",))
config = LlamaConfig(
    hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=8,
    vocab_size=32000, use_cache=False, attn_implementation="sdpa",
)  # fmt: skip
with torch.device("meta"):
    model = LlamaForCausalLM(config)
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model.model.layers:
    fully_shard(layer, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
model.to_empty(device="cuda")
for module in model.modules():
    if hasattr(module, "inv_freq"):
        module.inv_freq.copy_(1.0 / 10000 ** (torch.arange(0, 64, 2, device="cuda") / 64))
    if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
        torch.nn.init.normal_(module.weight, std=0.02)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=True)
for step in range(6):
    tokens = torch.randint(32000, (4, 1024), device="cuda")
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0:
        print(
            f"step {step}: loss {loss.item():.4f} norm {norm.full_tensor().item() if hasattr(norm, 'full_tensor') else norm.item():.3f}"
        )
dist.destroy_process_group()
