"""Trains an autoencoder of star spectra; the run can be resumed from its last checkpoint."""
import os
import sys
import tempfile
import time
import torch
from torch import nn

TRUTH = {
    "cause": "A checkpoint of model and optimizer is written to disk after every single step; one every some hundred steps would do.",
    "lines": ["keeper.save(step, net, optimizer)", "torch.save(state, part)", "if step % self.every == 0 or step == self.last:", "every = 50 if MENDED else 1"],
    "says": ["checkpoint", r"torch\.save|\bsav(e|es|ing)\b", "state_dict", "disk", "serializ|pickl", r"\bI/?O\b", "writ(e|es|ing|ten)"],
    "remedy": ["less often|rarely|fewer", "every (n|k|some|few|\\d+|hundred|epoch)", "once (per|an|each) epoch", "interval|period", "background|asynchron|thread", "at the end", "every .*steps"],
}
MENDED = "--mended" in sys.argv


class Keeper:
    def __init__(self, folder, every, last):
        self.path, self.every, self.last = os.path.join(folder, "last.pt"), every, last

    def save(self, step, net, optimizer):
        if step % self.every == 0 or step == self.last:
            state = {"step": step, "net": net.state_dict(), "optimizer": optimizer.state_dict()}
            part = self.path + ".part"
            torch.save(state, part)
            os.replace(part, self.path)


class Autoencoder(nn.Module):
    def __init__(self, bins=1200, width=512, code=16):
        super().__init__()
        self.down = nn.Sequential(nn.Linear(bins, width), nn.GELU(), nn.Linear(width, code))
        self.up = nn.Sequential(nn.Linear(code, width), nn.GELU(), nn.Linear(width, bins))

    def forward(self, x):
        return self.up(self.down(x))


def spectra(count, bins, gen):
    line = torch.linspace(0, 1, bins)
    centre = torch.rand(count, 3, 1, generator=gen)
    depth = 0.2 + 0.6 * torch.rand(count, 3, 1, generator=gen)
    return 1 - (depth * torch.exp(-((line - centre) / 0.03).square())).sum(1)


def main():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(1)
    data = spectra(4000, 1200, gen)
    net = Autoencoder()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    steps = 220
    every = 50 if MENDED else 1
    start = time.time()
    with tempfile.TemporaryDirectory() as folder:
        keeper = Keeper(folder, every, steps - 1)
        for step in range(steps):
            x = data[torch.randint(len(data), (64,), generator=gen)]
            loss = (net(x) - x).square().mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            keeper.save(step, net, optimizer)
            if step % 55 == 54:
                print(f"step {step + 1}: loss {loss.item():.5f}")
        print("resume at", torch.load(keeper.path)["step"] + 1)
    print(f"loop {time.time() - start:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
