"""A vision transformer by DistributedDataParallel and autocast, as trained on a node of GPUs: docs/guide/elsewhere.md.

torchrun --nproc-per-node 8 examples/ddp_vit.py
rooflight run --on H100-SXM5-80GB --gpus 8 examples/ddp_vit.py
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WIDTH, HEADS, LAYERS, PATCH, CLASSES = 768, 12, 12, 16, 1000


class ViT(nn.Module):
    """Images [batch, 3, 224, 224] -> [batch, CLASSES]."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.places = nn.Parameter(torch.zeros(1, (224 // PATCH) ** 2, WIDTH))
        block = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.patches(images).flatten(2).mT + self.places).mean(1))


def main() -> None:
    dist.init_process_group("nccl")
    device = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(device)
    data = TensorDataset(torch.rand(2048, 3, 224, 224), torch.randint(CLASSES, (2048,)))  # put yours here
    loader = DataLoader(data, 64, sampler=DistributedSampler(data), pin_memory=True)
    model = DistributedDataParallel(ViT().to(device), device_ids=[device])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for batch in loader:
        images, labels = (each.to(device, non_blocking=True) for each in batch)
        with torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" not in os.environ:
        import sys

        print("run it with torchrun --nproc-per-node 8 examples/ddp_vit.py", file=sys.stderr)
        raise SystemExit(2)
    main()
