"""A GAN: three backwards and a step of each of two optimizers an iteration; images are drawn in two workers."""

import argparse
import random

import torch
from torch import nn, optim

parser = argparse.ArgumentParser()
parser.add_argument("--niter", type=int, default=1)
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--manualSeed", type=int)
opt = parser.parse_args()
print(opt)
random.seed(opt.manualSeed)
torch.manual_seed(opt.manualSeed)


class Fake(torch.utils.data.Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, i):
        state = torch.get_rng_state()
        torch.manual_seed(i)
        image = torch.randn(3, 16, 16)
        torch.set_rng_state(state)
        return image, 0


def weights_init(m):
    if "Conv" in m.__class__.__name__:
        nn.init.normal_(m.weight, 0.0, 0.02)


dataloader = torch.utils.data.DataLoader(Fake(), batch_size=16, shuffle=True, num_workers=opt.workers)
netG = nn.Sequential(nn.ConvTranspose2d(10, 8, 4), nn.ReLU(), nn.ConvTranspose2d(8, 3, 4, 4), nn.Tanh())
netD = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.LeakyReLU(0.2), nn.Conv2d(8, 1, 4), nn.Sigmoid())
netG.apply(weights_init)
netD.apply(weights_init)
criterion = nn.BCELoss()
fixed_noise = torch.randn(16, 10, 1, 1)
optimizerD = optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
for epoch in range(opt.niter):
    for i, data in enumerate(dataloader):
        netD.zero_grad()
        label = torch.full((len(data[0]),), 1.0)
        output = netD(data[0]).view(-1)
        errD_real = criterion(output, label)
        errD_real.backward()
        fake = netG(torch.randn(len(data[0]), 10, 1, 1))
        label.fill_(0.0)
        errD_fake = criterion(netD(fake.detach()).view(-1), label)
        errD_fake.backward()
        optimizerD.step()
        netG.zero_grad()
        label.fill_(1.0)
        errG = criterion(netD(fake).view(-1), label)
        errG.backward()
        optimizerG.step()
        print(f"[{epoch}][{i}] Loss_D: {(errD_real + errD_fake).item():.9f} Loss_G: {errG.item():.9f}")
        if i % 10 == 0:
            torch.save(netG(fixed_noise).detach(), f"samples_{i}.pt")
    torch.save(netG.state_dict(), f"netG_{epoch}.pth")
    torch.save(netD.state_dict(), f"netD_{epoch}.pth")
