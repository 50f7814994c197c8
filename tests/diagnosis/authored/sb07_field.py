"""Fits a network with sine activations to a large photograph, pixel by pixel."""
import sys
import time
import torch
from torch import nn

TRUTH = {
    "cause": "Each step permutes the numbers of all pixels to take a few thousand of them; drawing random integers costs next to nothing.",
    "lines": ["rows = torch.randperm(len(self.colours), generator=self.gen)[:size]", "coords, colours = pixels.draw(4096)"],
    "says": ["randperm", "permut", "shuffl", "sampl", "draw", "sliced? away|first few|most of"],
    "remedy": ["randint", "random integer", "once (per|an|each) epoch", "once", "with replacement", "multinomial", "reuse", "walk through"],
}
MENDED = "--mended" in sys.argv


class Sine(nn.Module):
    def __init__(self, fan_in, fan_out, omega=20.0):
        super().__init__()
        self.linear, self.omega = nn.Linear(fan_in, fan_out), omega
        bound = (6 / fan_in) ** 0.5 / omega if fan_in > 2 else 0.5
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x):
        return torch.sin(self.omega * self.linear(x))


class Pixels:
    def __init__(self, side, seed=0):
        self.gen, self.side = torch.Generator().manual_seed(seed), side
        line = torch.linspace(-1, 1, side)
        red = (torch.sin(6 * line)[:, None] * torch.cos(4 * line)[None, :]).reshape(-1)
        green = (line[:, None] * line[None, :]).reshape(-1)
        blue = torch.exp(-4 * (line[:, None].square() + line[None, :].square())).reshape(-1)
        self.colours = torch.stack([red, green, blue], 1)

    def draw(self, size):
        if MENDED:
            rows = torch.randint(len(self.colours), (size,), generator=self.gen)
        else:
            rows = torch.randperm(len(self.colours), generator=self.gen)[:size]
        y, x = rows // self.side, rows % self.side
        coords = torch.stack([y, x], 1).float() * (2 / (self.side - 1)) - 1
        return coords, self.colours[rows]


def main():
    torch.manual_seed(0)
    pixels = Pixels(1400)
    net = nn.Sequential(Sine(2, 64), Sine(64, 64), nn.Linear(64, 3))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    start, mean = time.time(), 0.0
    for step in range(150):
        coords, colours = pixels.draw(4096)
        loss = (net(coords) - colours).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 30 == 29:
            print(f"step {step + 1}: psnr {-10 * torch.log10(loss.detach() / 4).item():.1f}")
    print(f"loop {time.time() - start:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
