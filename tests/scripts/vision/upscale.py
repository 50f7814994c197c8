"""Super-resolution with loader workers; its evaluation calls a loss module, and the whole model is pickled."""

import argparse
from math import log10

import torch
from images import Digits
from torch import nn, optim
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--batchSize", type=int, default=4)
parser.add_argument("--nEpochs", type=int, default=1)
parser.add_argument("--threads", type=int, default=2)
opt = parser.parse_args()
print(opt)
torch.manual_seed(123)


class Pairs(Digits):
    def __getitem__(self, index):
        image = self.images[index]
        return nn.functional.avg_pool2d(image, 3), image


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 5, padding=2)
        self.conv2 = nn.Conv2d(16, 9, 3, padding=1)
        self.shuffle = nn.PixelShuffle(3)

    def forward(self, x):
        return self.shuffle(self.conv2(torch.relu(self.conv1(x))))


train_loader = DataLoader(Pairs(20, 24), num_workers=opt.threads, batch_size=opt.batchSize, shuffle=True)
test_loader = DataLoader(Pairs(6, 24, seed=6), num_workers=opt.threads, batch_size=2)
model = Net()
criterion = nn.MSELoss()
optimizer = optim.Adam(model.parameters(), lr=0.01)


def train(epoch):
    epoch_loss = 0
    for iteration, batch in enumerate(train_loader, 1):
        small, target = batch[0], batch[1]
        optimizer.zero_grad()
        loss = criterion(model(small), target)
        epoch_loss += loss.item()
        loss.backward()
        optimizer.step()
        print(f"===> Epoch[{epoch}]({iteration}/{len(train_loader)}): Loss: {loss.item()!r}")
    print(f"===> Epoch {epoch} Complete: Avg. Loss: {epoch_loss / len(train_loader):.9f}")


def test():
    avg_psnr = 0
    with torch.no_grad():
        for batch in test_loader:
            avg_psnr += 10 * log10(1 / criterion(model(batch[0]), batch[1]).item())
    print(f"===> Avg. PSNR: {avg_psnr / len(test_loader):.9f} dB")


for epoch in range(1, opt.nEpochs + 1):
    train(epoch)
    test()
    torch.save(model, f"model_epoch_{epoch}.pth")
