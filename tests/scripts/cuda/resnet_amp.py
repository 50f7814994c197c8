"""ResNet-50 on images: a loader with pinned memory, channels last, float16 autocast with a scaler, momentum."""

import argparse

import torch
import torch.nn.functional as F
import torchvision
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.full((3, 224, 224), index / self.count), index % 1000


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    model = torchvision.models.resnet50().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    scaler = torch.amp.GradScaler(device.type)
    run = torch.compile(model) if args.compile else model
    loader = DataLoader(Images(args.batch * args.steps), args.batch, shuffle=True, num_workers=2, pin_memory=True)
    model.train()
    for step, (images, labels) in enumerate(loader):
        images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
        labels = labels.to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=torch.float16):
            out = run(images)
            loss = F.cross_entropy(out, labels, label_smoothing=0.1)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        correct = (out.argmax(1) == labels).float().mean()
        print(f"{step}: loss {loss.item():.3f}, top-1 {correct.item():.3f}")


if __name__ == "__main__":
    main()
