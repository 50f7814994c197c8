"""Trains a classifier of whale calls; spectra are computed at first use and kept, the held-out calls are judged at times."""
import sys
import time
import torch
from torch import nn

TRUTH = {"healthy": True}


class Calls:
    def __init__(self, count, gen):
        self.kind = torch.randint(6, (count,), generator=gen)
        self.pitch = 0.05 + 0.05 * self.kind + 0.01 * torch.randn(count, generator=gen)
        self.window = torch.hann_window(256)
        self.spectra, self.known = torch.empty(count, 129 * 24), torch.zeros(count, dtype=torch.bool)

    def listen(self, rows):
        time_axis = torch.arange(256 + 128 * 23)
        wave = torch.sin(3.1416 * self.pitch[rows, None] * time_axis)
        spec = torch.stft(wave, 256, 128, window=self.window, center=False, return_complex=True)
        return (spec.abs() + 1e-2).log().flatten(1)

    def get(self, rows):
        missing = rows[~self.known[rows]].unique()
        if len(missing):
            self.spectra[missing] = self.listen(missing)
            self.known[missing] = True
        return self.spectra[rows], self.kind[rows]


def judge(net, calls, size=256):
    net.eval()
    right = torch.zeros((), dtype=torch.long)
    with torch.inference_mode():
        for rows in torch.arange(len(calls.kind)).split(size):
            x, y = calls.get(rows)
            right += (net(x).argmax(1) == y).sum()
    net.train()
    return right.item() / len(calls.kind)


def main():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(1)
    train, held = Calls(2000, gen), Calls(500, gen)
    net = nn.Sequential(nn.Linear(129 * 24, 384), nn.ReLU(), nn.Dropout(0.1), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 6))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 240)
    loss_fn = nn.CrossEntropyLoss()
    start, total = time.time(), torch.zeros(())
    for step in range(240):
        rows = torch.randint(2000, (512,), generator=gen)
        x, y = train.get(rows)
        loss = loss_fn(net(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        total += loss.detach()
        if step % 80 == 79:
            print(f"step {step + 1}: loss {total.item() / 80:.4f}, held-out accuracy {judge(net, held):.3f}")
            total.zero_()
    print(f"loop {time.time() - start:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
