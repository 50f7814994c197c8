"""Draws tiles of textures with a small convolutional denoiser, deterministic steps from noise."""
import sys
import time
import torch
from torch import nn
import torch.nn.functional as F

TRUTH = {"healthy": True}


class Level(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.shift = nn.Linear(64, width)

    def forward(self, x, code):
        h = self.first(F.silu(x)) + self.shift(code)[:, :, None, None]
        return x + self.second(F.silu(h))


class Denoiser(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.inp, self.out = nn.Conv2d(4, width, 3, padding=1), nn.Conv2d(width, 4, 3, padding=1)
        self.fine, self.last = Level(width), Level(width)
        self.down, self.coarse = nn.Conv2d(width, width, 2, stride=2), Level(width)
        self.mix = nn.Conv2d(2 * width, width, 1)

    def forward(self, x, code):
        fine = self.fine(self.inp(x), code)
        coarse = self.coarse(self.down(fine), code)
        wide = F.interpolate(coarse, scale_factor=2)
        return self.out(self.last(self.mix(torch.cat([fine, wide], 1)), code))


class Sampler:
    def __init__(self, net, steps):
        self.net, self.steps = net, steps
        bar = torch.cos(torch.linspace(0.02, 1.5, steps)).square()
        self.signal, self.noise = bar.sqrt().tolist(), (1 - bar).sqrt().tolist()
        waves = torch.exp(torch.linspace(0, 5, 32))
        angles = torch.linspace(0, 1, steps)[:, None] * waves
        self.codes = torch.cat([angles.sin(), angles.cos()], 1)

    @torch.inference_mode()
    def sample(self, x):
        for i in range(self.steps - 1, 0, -1):
            eps = self.net(x, self.codes[i:i + 1])
            guess = (x - self.noise[i] * eps).div_(self.signal[i]).clamp_(-3, 3)
            x = guess.mul_(self.signal[i - 1]).add_(eps, alpha=self.noise[i - 1])
            if i % 30 == 0:
                print(f"{i} steps to go, spread {x.std().item():.4f}")
        return x


def main():
    torch.manual_seed(0)
    net = Denoiser().eval().to(memory_format=torch.channels_last)
    sampler = Sampler(net, 151)
    noise = torch.randn(4, 4, 32, 32).contiguous(memory_format=torch.channels_last)
    start = time.time()
    tiles = sampler.sample(noise)
    print(f"tiles {tuple(tiles.shape)}, mean {tiles.mean().item():.4f}")
    print(f"loop {time.time() - start:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
