"""The style of 2020: torch.cuda.amp, channels_last, GradScaler, events around a step, an average of the weights,
a batch prefetched in pinned memory, peaks of memory printed.
"""

import argparse
import copy

import torch
from torch import nn
from torch.cuda.amp import GradScaler, autocast
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--iters", type=int, default=8)
args = parser.parse_args()
assert torch.cuda.is_available(), "needs CUDA"
torch.backends.cudnn.benchmark = True
device = torch.device("cuda:0")


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        sigmoid = torch.sigmoid(x)
        return gradient * sigmoid * (1 + x * (1 - sigmoid))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.Conv2d(64, 64, 3, padding=1, bias=False))
            for _ in range(4)
        )
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return self.head(Swish.apply(x).mean((2, 3)))


model = Net().to(device, memory_format=torch.channels_last)
averaged = copy.deepcopy(model).eval()
for parameter in averaged.parameters():
    parameter.requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=args.iters)
scaler = GradScaler(enabled=True)
data = TensorDataset(
    torch.randn(args.batch_size * args.iters, 3, 32, 32), torch.arange(args.batch_size * args.iters) % 10
)
loader = DataLoader(data, args.batch_size, shuffle=True, pin_memory=True, drop_last=True)
begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
torch.cuda.reset_peak_memory_stats(device)
held = torch.cuda.memory_allocated(device)
for step, (images, labels) in enumerate(loader):
    images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
    labels = labels.to(device, non_blocking=True)
    begin.record()
    with autocast():
        output = model(images)
        loss = nn.functional.cross_entropy(output, labels, label_smoothing=0.1)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    with torch.no_grad():
        for mean, parameter in zip(averaged.parameters(), model.parameters()):
            mean.mul_(0.999).add_(parameter, alpha=0.001)
    end.record()
    torch.cuda.synchronize()
    correct = (output.argmax(1) == labels).float().mean() * 100
    print(
        f"step {step}: loss {loss.item():.3f} acc {correct.item():.1f} scale {scaler.get_scale():.0f} "
        f"{begin.elapsed_time(end):.1f} ms, held {held}, now {torch.cuda.memory_allocated(device)}, "
        f"peak {torch.cuda.max_memory_allocated(device)}"
    )
