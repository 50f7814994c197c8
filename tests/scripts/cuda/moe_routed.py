"""A mixture of experts whose tokens go where the router says, expert by expert."""

import torch
import torch.nn.functional as F
from torch import nn

width, hidden, experts, chosen, tokens = 1024, 2048, 8, 2, 4096


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, hidden), nn.SiLU(), nn.Linear(hidden, width)) for _ in range(experts)
        )

    def forward(self, x):
        weights, places = F.softmax(self.router(x), dim=-1).topk(chosen, dim=-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, ranks = torch.where(places == number)
            if rows.numel() == 0:
                continue
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, ranks, None])
        return out


model = nn.Sequential(*(Experts() for _ in range(4))).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(6):
    x = torch.randn(tokens, width, device="cuda")
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")
