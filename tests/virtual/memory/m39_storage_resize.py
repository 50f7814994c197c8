"""Sharding by hand: each layer's full weight is a storage that is resized up for use and to 0 after it."""
import torch
from torch import nn

# 8 shards of 8192 * 8192 / 4 elements, 64 MiB each: 512 MiB; full weights of 256 MiB, one at a time.
# Peak in step(): shards 512, gradients 512, state 1024, square roots 512, x 128 MiB: 2688 MiB.
shards = [nn.Parameter(torch.randn(8192 * 8192 // 4, device="cuda")) for _ in range(8)]
full = [torch.empty(8192, 8192, device="cuda") for _ in shards]
for weight in full:
    weight.untyped_storage().resize_(0)
optimizer = torch.optim.AdamW(shards, lr=1e-4)

for step in range(5):
    x = torch.randn(4096, 8192, device="cuda")
    with torch.no_grad():
        for shard, weight in zip(shards, full):
            weight.untyped_storage().resize_(8192 * 8192 * 4)
            weight.view(4, -1).copy_(shard.expand(4, -1))
            x = torch.relu(x @ weight)
            weight.untyped_storage().resize_(0)
    for shard in shards:
        shard.grad = torch.randn_like(shard) * x.mean()
    optimizer.step()
    optimizer.zero_grad()
