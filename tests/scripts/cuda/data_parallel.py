"""ImageNet in the old manner: DataParallel over all GPUs, meters, top-1 and top-5, validation, a checkpoint."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.relu = nn.ReLU(inplace=True)
        self.down = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride != 1 or inputs != outputs else None

    def forward(self, x):
        same = x if self.down is None else self.down(x)
        return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + same)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        self.blocks = nn.Sequential(
            *(Block(a, b, s) for a, b, s in [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)])
        )
        self.head = nn.Linear(512, 1000)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        _, pred = output.topk(max(topk), 1, True, True)
        correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
        return [correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / target.size(0)) for k in topk]


def main():
    model = nn.DataParallel(ResNet()).cuda()
    criterion = nn.CrossEntropyLoss().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    torch.backends.cudnn.benchmark = True
    data = TensorDataset(torch.rand(320, 3, 224, 224), torch.randint(1000, (320,)))
    loader = DataLoader(data, 64, shuffle=True, pin_memory=True)
    end, best = time.time(), 0.0
    for epoch in range(2):
        model.train()
        for i, (images, target) in enumerate(loader):
            images, target = images.cuda(non_blocking=True), target.cuda(non_blocking=True)
            output = model(images)
            loss = criterion(output, target)
            acc1, acc5 = accuracy(output, target, topk=(1, 5))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(
                f"[{epoch}][{i}] time {time.time() - end:.3f} loss {loss.item():.4f} {acc1[0]:.2f} {acc5[0].item():.2f}"
            )
            end = time.time()
        model.eval()
        with torch.no_grad():
            found = accuracy(model(images), target)[0]
        best = max(best, found.item())
        torch.save({"epoch": epoch, "state_dict": model.state_dict(), "best": best}, "checkpoint.pth.tar")


if __name__ == "__main__":
    main()
