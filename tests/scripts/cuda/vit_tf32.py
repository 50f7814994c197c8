"""ViT-B/16 in float32 with TF32 products, mixup, AdamW by foreach, an average of the weights."""

import argparse

import torch
import torchvision
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--compile", action="store_true")
args = parser.parse_args()

torch.set_float32_matmul_precision("high")
device = "cuda"
model = torchvision.models.vit_b_16().to(device)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
run = torch.compile(model) if args.compile else model
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
generator = torch.Generator(device=device)
generator.manual_seed(0)
for step in range(args.steps):
    images = torch.randn(args.batch, 3, 224, 224, device=device, generator=generator)
    labels = torch.randint(1000, (args.batch,), device=device, generator=generator)
    share = torch.distributions.Beta(0.8, 0.8).sample().item()
    order = torch.randperm(args.batch, device=device)
    out = run(share * images + (1 - share) * images[order])
    loss = share * torch.nn.functional.cross_entropy(out, labels)
    loss = loss + (1 - share) * torch.nn.functional.cross_entropy(out, labels[order])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update_parameters(model)
    print(f"step {step} loss {loss.item():.4f}")
