"""Saves weights, optimizer, scaler and generator states, and resumes; buffers, weights averaged, an early stop."""

import copy
import os

import torch
from torch import nn


class Memory(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
        self.mean = nn.Buffer(torch.zeros(width))
        self.register_buffer("seen", torch.tensor(0), persistent=False)

    def forward(self, x):
        if self.training:
            self.mean.lerp_(x.mean(0).detach().float(), 0.01)
            self.seen += 1
        return self.body(x - self.mean)


def steps(model, optimizer, scaler, first, last):
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99))
    best = float("inf")
    for step in range(first, last):
        x = torch.randn(256, 512, device="cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            loss = (model(x) - x).square().mean()
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        average.update_parameters(model)
        if loss.item() < best:
            best = loss.item()
            kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict(),
                    "step": step + 1, "rng": torch.cuda.get_rng_state(), "ema": copy.deepcopy(average.state_dict())}  # fmt: skip
            torch.save(kept, "last.pt")
        print(f"step {step}: best {best:.4f}, seen {int(model.seen)}, scale {scaler.get_scale()}")


model = Memory().cuda()
optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=1e-3), torch.amp.GradScaler("cuda")
steps(model, optimizer, scaler, 0, 2)
state = torch.load("last.pt", map_location="cuda:0", weights_only=True)
again = Memory().cuda()
missing = again.load_state_dict(state["model"], strict=True)
optimizer2, scaler2 = torch.optim.AdamW(again.parameters(), lr=1e-3), torch.amp.GradScaler("cuda")
optimizer2.load_state_dict(state["optimizer"])
scaler2.load_state_dict(state["scaler"])
torch.cuda.set_rng_state(state["rng"].cpu())
print(f"resumed at {state['step']}: {missing}")
steps(again, optimizer2, scaler2, state["step"], state["step"] + 4)
os.path.exists("last.pt") and os.remove("last.pt")
