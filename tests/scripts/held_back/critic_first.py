"""A Wasserstein GAN: five steps of the critic for one of the generator, with a penalty on the critic's gradient."""

import torch
from torch import autograd, nn, optim

torch.manual_seed(3)
critic = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 8))
opt_c = optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))
opt_g = optim.Adam(generator.parameters(), lr=1e-3, betas=(0.0, 0.9))


def penalty(real, fake):
    mixed = (real + torch.rand(16, 1) * (fake - real)).requires_grad_()
    (gradient,) = autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    return 10 * (gradient.norm(dim=1) - 1).square().mean()


for i in range(100):
    real = torch.randn(16, 8) * 2 + 1
    fake = generator(torch.randn(16, 4)).detach()
    loss_c = critic(fake).mean() - critic(real).mean() + penalty(real, fake)
    opt_c.zero_grad()
    loss_c.backward()
    opt_c.step()
    if i % 5 == 4:
        loss_g = -critic(generator(torch.randn(16, 4))).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        print(i, repr(loss_c.item()), repr(loss_g.item()))
