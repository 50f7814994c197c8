"""WGAN-GP: the critic's gradient with respect to its input is itself differentiated; five critic steps to one."""

import torch
from torch import autograd, nn

cuda = torch.cuda.is_available()
Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor
latent, batch = 100, 64
generator = nn.Sequential(
    nn.Linear(latent, 256),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Linear(256, 512),
    nn.BatchNorm1d(512, 0.8),
    nn.LeakyReLU(0.2),
    nn.Linear(512, 784),
    nn.Tanh(),
)
critic = nn.Sequential(
    nn.Linear(784, 512),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Linear(512, 256),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Linear(256, 1),
)
if cuda:
    generator.cuda()
    critic.cuda()
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizer_d = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))


def penalty(real, fake):
    alpha = Tensor(torch.rand(real.size(0), 1))
    between = (alpha * real + ((1 - alpha) * fake)).requires_grad_(True)
    scored = critic(between)
    ones = autograd.Variable(Tensor(real.shape[0], 1).fill_(1.0), requires_grad=False)
    gradients = autograd.grad(scored, between, ones, create_graph=True, retain_graph=True, only_inputs=True)[0]
    return ((gradients.view(gradients.size(0), -1).norm(2, dim=1) - 1) ** 2).mean()


for i in range(16):
    real = torch.rand(batch, 784).type(Tensor)
    optimizer_d.zero_grad()
    z = Tensor(torch.randn(batch, latent))
    fake = generator(z)
    d_loss = -torch.mean(critic(real)) + torch.mean(critic(fake)) + 10 * penalty(real.data, fake.data)
    d_loss.backward()
    optimizer_d.step()
    optimizer_g.zero_grad()
    if i % 5 == 0:
        g_loss = -torch.mean(critic(generator(z)))
        g_loss.backward()
        optimizer_g.step()
        print(f"[{i}] D {d_loss.item():f} G {g_loss.item():f}")
