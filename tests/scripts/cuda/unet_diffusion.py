"""A small U-Net learns noise: group norms, up and down, EMA by deepcopy, streams and events, bfloat16."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

assert torch.cuda.is_available(), "needs a GPU"
device = torch.device("cuda", torch.cuda.current_device())
print("on", torch.cuda.device_count(), "GPU of", torch.cuda.get_device_capability(device))


class Block(nn.Module):
    def __init__(self, i, o, times=256):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, i), nn.Conv2d(i, o, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, o), nn.Conv2d(o, o, 3, padding=1)
        self.time, self.skip = nn.Linear(times, o), nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, t):
        y = self.conv1(F.silu(self.norm1(x))) + self.time(t)[:, :, None, None]
        return self.conv2(F.silu(self.norm2(y))) + self.skip(x)


class UNet(nn.Module):
    def __init__(self, widths=(64, 128, 256)):
        super().__init__()
        self.first = nn.Conv2d(3, widths[0], 3, padding=1)
        self.time = nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 256))
        self.downs = nn.ModuleList(Block(i, o) for i, o in zip((widths[0], *widths), widths))
        self.middle = Block(widths[-1], widths[-1])
        self.ups = nn.ModuleList(Block(2 * i, o) for i, o in zip(widths[::-1], (*widths[-2::-1], widths[0])))
        self.last = nn.Conv2d(widths[0], 3, 3, padding=1)

    def forward(self, x, t):
        angles = t[:, None] * torch.exp(-math.log(10000) * torch.arange(32, device=t.device) / 32)
        t, x, kept = self.time(torch.cat([angles.sin(), angles.cos()], -1)), self.first(x), []
        for block in self.downs:
            x = block(x, t)
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle(x, t)
        for block in self.ups:
            x = block(torch.cat([F.interpolate(x, scale_factor=2), kept.pop()], 1), t)
        return self.last(x)


model = UNet().to(device)
ema = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
betas = torch.linspace(1e-4, 0.02, 1000, device=device)
kept = torch.cumprod(1 - betas, 0)
side = torch.cuda.Stream()
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
for step in range(6):
    with torch.cuda.stream(side):
        images = torch.rand(64, 3, 64, 64).pin_memory().to(device, non_blocking=True) * 2 - 1
    torch.cuda.current_stream().wait_stream(side)
    start.record()
    t = torch.randint(0, 1000, (64,), device=device)
    noise = torch.randn_like(images)
    share = kept[t][:, None, None, None]
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.mse_loss(model(share.sqrt() * images + (1 - share).sqrt() * noise, t.float()).float(), noise)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    if not torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 1.0)):
        raise RuntimeError("gradients are not finite")
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(ema.parameters(), model.parameters()):
            slow.lerp_(fast, 0.001)
    end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) >= 0
    print(f"step {step} loss {loss.item():.4f}")
torch.save({"ema": ema.state_dict(), "rng": torch.cuda.get_rng_state()}, "/dev/null")
