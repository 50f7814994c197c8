"""Four steps of a classifier with loader workers, the script's own meters of time, validation and checkpoints."""

import argparse
import random
import shutil
import time
import warnings

import torch
from images import Compose, Digits, Normalize
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", default=1, type=int)
parser.add_argument("-b", "--batch-size", default=16, type=int)
parser.add_argument("--workers", default=2, type=int)
parser.add_argument("--seed", default=None, type=int)


class AverageMeter:
    def __init__(self, name):
        self.name, self.val, self.sum, self.count = name, 0, 0, 0

    def update(self, val, n=1):
        self.val, self.sum, self.count = val, self.sum + val * n, self.count + n

    def __str__(self):
        return f"{self.name} {self.val:.4f} ({self.sum / self.count:.4f})"


def main():
    args = parser.parse_args()
    if args.seed is not None:
        random.seed(args.seed)
        torch.manual_seed(args.seed)
        warnings.warn("You have chosen to seed training.", stacklevel=2)
    main_worker(args)


def main_worker(args):
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2),
        nn.BatchNorm2d(8),
        nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
    kinds = {"batch_size": args.batch_size, "num_workers": args.workers}
    transform = Compose([Normalize(0.5, 0.25)])
    train_loader = torch.utils.data.DataLoader(Digits(64, 64, 3, transform), shuffle=True, **kinds)
    val_loader = torch.utils.data.DataLoader(Digits(24, 64, 3, transform, seed=6), **kinds)
    for epoch in range(args.epochs):
        train(train_loader, model, criterion, optimizer, epoch)
        acc1 = validate(val_loader, model, criterion)
        scheduler.step()
        torch.save({"epoch": epoch + 1, "state_dict": model.state_dict()}, "checkpoint.pth.tar")
        if acc1 >= 0:
            shutil.copyfile("checkpoint.pth.tar", "model_best.pth.tar")


def train(loader, model, criterion, optimizer, epoch):
    batch_time, data_time, losses = AverageMeter("Time"), AverageMeter("Data"), AverageMeter("Loss")
    model.train()
    end = time.time()
    for i, (images, target) in enumerate(loader):
        data_time.update(time.time() - end)
        output = model(images)
        loss = criterion(output, target)
        acc = accuracy(output, target)
        losses.update(loss.item(), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batch_time.update(time.time() - end)
        end = time.time()
        print(f"Epoch: [{epoch}][{i + 1}/{len(loader)}] {batch_time} {data_time} {losses} Acc {acc:.2f}")


def validate(loader, model, criterion):
    model.eval()
    accs = AverageMeter("Acc")
    with torch.no_grad():
        for images, target in loader:
            output = model(images)
            criterion(output, target)
            accs.update(accuracy(output, target), images.size(0))
    print(f" * {accs}")
    return accs.sum / accs.count


def accuracy(output, target):
    with torch.no_grad():
        return (output.argmax(1) == target).float().mean().item() * 100


if __name__ == "__main__":
    main()
