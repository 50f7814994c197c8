"""Distillation: the frozen teacher is far larger than the student that is trained."""
import torch
import torch.nn.functional as F
from torch import nn


def mlp(width, depth, dtype):
    layers = [nn.Linear(1024, width, device="cuda", dtype=dtype)]
    for _ in range(depth):
        layers += [nn.GELU(), nn.Linear(width, width, device="cuda", dtype=dtype)]
    return nn.Sequential(*layers, nn.GELU(), nn.Linear(width, 1000, device="cuda", dtype=dtype))


teacher = mlp(16384, 12, torch.bfloat16).eval().requires_grad_(False)
student = mlp(2048, 2, torch.float32)
optimizer = torch.optim.Adam(student.parameters(), lr=3e-4)

for step in range(5):
    images = torch.randn(512, 1024, device="cuda")
    with torch.no_grad():
        target = teacher(images.bfloat16()).float().softmax(dim=-1)
    loss = F.kl_div(student(images).log_softmax(dim=-1), target, reduction="batchmean")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
