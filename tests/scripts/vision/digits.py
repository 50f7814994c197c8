"""Digits, whose transform is a module that is called once an image while the loader is advanced."""

import argparse

import torch
import torch.nn.functional as F
from images import Compose, Digits, Normalize
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, 2)
        self.conv2 = nn.Conv2d(4, 8, 3, 2)
        self.dropout = nn.Dropout(0.25)
        self.fc = nn.Linear(288, 10)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        return F.log_softmax(self.fc(self.dropout(torch.flatten(x, 1))), dim=1)


def train(model, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        if batch_idx % 10 == 0:
            print(f"Train Epoch: {epoch} [{batch_idx * len(data)}/{len(train_loader.dataset)}]\tLoss: {loss.item()!r}")


def test(model, test_loader):
    model.eval()
    test_loss = 0
    with torch.no_grad():
        for data, target in test_loader:
            test_loss += F.nll_loss(model(data), target, reduction="sum").item()
    print(f"\nTest set: Average loss: {test_loss / len(test_loader.dataset):.9f}\n")


def main():
    parser = argparse.ArgumentParser(description="digits")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--save-model", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(1)
    transform = Compose([Normalize(0.1307, 0.3081)])
    train_loader = torch.utils.data.DataLoader(Digits(640, transform=transform), batch_size=args.batch_size)
    test_loader = torch.utils.data.DataLoader(Digits(128, transform=transform, seed=6), batch_size=128)
    model = Net()
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, args.epochs + 1):
        train(model, train_loader, optimizer, epoch)
        test(model, test_loader)
        scheduler.step()
    if args.save_model:
        torch.save(model.state_dict(), "digits.pt")


if __name__ == "__main__":
    main()
