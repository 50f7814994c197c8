"""DCGAN: two networks, two optimizers, labels filled in place, samples made now and then."""

import torch
from torch import nn

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
noise, base, batch = 100, 64, 128


def init(module):
    name = type(module).__name__
    if "Conv" in name:
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif "BatchNorm" in name:
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)


def up(i, o, stride, pad):
    return nn.ConvTranspose2d(i, o, 4, stride, pad, bias=False), nn.BatchNorm2d(o), nn.ReLU(True)


def down(i, o):
    return nn.Conv2d(i, o, 4, 2, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.2, inplace=True)


generator = nn.Sequential(
    *up(noise, 8 * base, 1, 0), *up(8 * base, 4 * base, 2, 1), *up(4 * base, 2 * base, 2, 1), *up(2 * base, base, 2, 1),
    nn.ConvTranspose2d(base, 3, 4, 2, 1, bias=False), nn.Tanh(),
).to(device)  # fmt: skip
judge = nn.Sequential(
    nn.Conv2d(3, base, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
    *down(base, 2 * base), *down(2 * base, 4 * base), *down(4 * base, 8 * base),
    nn.Conv2d(8 * base, 1, 4, 1, 0, bias=False), nn.Sigmoid(),
).to(device)  # fmt: skip
generator.apply(init)
judge.apply(init)
criterion = nn.BCELoss()
fixed = torch.randn(64, noise, 1, 1, device=device)
judge_optimizer = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
for step in range(8):
    judge.zero_grad()
    real = torch.randn(batch, 3, 64, 64).to(device)
    label = torch.full((batch,), 1.0, dtype=real.dtype, device=device)
    out = judge(real).view(-1)
    loss_real = criterion(out, label)
    loss_real.backward()
    fake = generator(torch.randn(batch, noise, 1, 1, device=device))
    label.fill_(0.0)
    loss_fake = criterion(judge(fake.detach()).view(-1), label)
    loss_fake.backward()
    judge_optimizer.step()
    generator.zero_grad()
    label.fill_(1.0)
    loss = criterion(judge(fake).view(-1), label)
    loss.backward()
    generator_optimizer.step()
    print(
        f"[{step}] judge {(loss_real + loss_fake).item():.4f} generator {loss.item():.4f} D(x) {out.mean().item():.4f}"
    )
    if step % 4 == 3:
        with torch.no_grad():
            print("sample", tuple(generator(fixed).detach().cpu().shape))
