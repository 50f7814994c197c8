"""MoCo: a momentum encoder and a long queue of keys, held as a buffer."""
import copy

import torch
import torch.nn.functional as F
from torch import nn

query = nn.Sequential(nn.Flatten(), nn.Linear(3 * 96 * 96, 2048), nn.ReLU(), nn.Linear(2048, 128)).cuda()
key = copy.deepcopy(query).requires_grad_(False)
queue = F.normalize(torch.randn(128, 1_048_576, device="cuda"), dim=0)  # 512 MiB, and as much while made
optimizer = torch.optim.SGD(query.parameters(), lr=0.03, momentum=0.9)

for step in range(5):
    first = torch.randn(512, 3, 96, 96, device="cuda")
    second = torch.randn(512, 3, 96, 96, device="cuda")
    q = F.normalize(query(first), dim=1)
    with torch.no_grad():
        for a, b in zip(key.parameters(), query.parameters()):
            a.mul_(0.999).add_(b, alpha=0.001)
        k = F.normalize(key(second), dim=1)
    logits = torch.cat([(q * k).sum(dim=1, keepdim=True), q @ queue], dim=1) / 0.07
    loss = F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long, device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    queue[:, step * 512 : (step + 1) * 512] = k.t()
