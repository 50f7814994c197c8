"""torch.utils.checkpoint: only each block's input is kept; one block's inside at a time is made again."""
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        return x + self.inner(x)


# 65_536 * 1024 * 4 = 256 MiB for each block's input; 1 GiB for each of a block's two wide tensors.
blocks = nn.ModuleList(Block(1024) for _ in range(8)).cuda()
optimizer = torch.optim.AdamW(blocks.parameters(), lr=1e-4)

for step in range(5):
    h = torch.randn(65_536, 1024, device="cuda")
    for block in blocks:
        h = checkpoint(block, h, use_reentrant=False)
    loss = h.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
