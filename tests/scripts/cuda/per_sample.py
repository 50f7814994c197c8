"""Gradients of each sample by torch.func: vmap over grad of a functional call, clipped and averaged (DP-SGD)."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

device = "cuda"
model = nn.Sequential(
    nn.Conv2d(1, 32, 3, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(9216, 128),
    nn.ReLU(), nn.Linear(128, 10),
).to(device)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def compute_loss(params, buffers, sample, target):
    predictions = functional_call(model, (params, buffers), (sample.unsqueeze(0),))
    return F.cross_entropy(predictions, target.unsqueeze(0))


compute = vmap(grad_and_value(compute_loss), in_dims=(None, None, 0, 0), randomness="different")
for step in range(4):
    data, targets = torch.randn(64, 1, 28, 28, device=device), torch.randint(0, 10, (64,), device=device)
    params = {k: v.detach() for k, v in model.named_parameters()}
    buffers = {k: v.detach() for k, v in model.named_buffers()}
    gradients, losses = compute(params, buffers, data, targets)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
    factor = (1.0 / (norms + 1e-6)).clamp(max=1.0)
    for name, parameter in model.named_parameters():
        clipped = torch.einsum("i,i...->...", factor, gradients[name])
        parameter.grad = (clipped + torch.randn_like(clipped)) / len(data)
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {losses.mean().item():.3f}, most {norms.max().item():.2f}")
