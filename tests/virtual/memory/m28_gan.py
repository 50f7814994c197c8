"""A GAN: two models in turn; the generator's graph stays alive through the discriminator's update."""
import torch
import torch.nn.functional as F
from torch import nn

generator = nn.Sequential(nn.Linear(256, 4096), nn.ReLU(), nn.Linear(4096, 3 * 64 * 64), nn.Tanh()).cuda()
critic = nn.Sequential(nn.Linear(3 * 64 * 64, 2048), nn.LeakyReLU(0.2), nn.Linear(2048, 1)).cuda()
generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))

for step in range(5):
    real = torch.randn(8192, 3 * 64 * 64, device="cuda")
    fake = generator(torch.randn(8192, 256, device="cuda"))
    critic_loss = F.softplus(critic(fake.detach())).mean() + F.softplus(-critic(real)).mean()
    critic_optimizer.zero_grad()
    critic_loss.backward()
    critic_optimizer.step()

    generator_loss = F.softplus(-critic(fake)).mean()
    generator_optimizer.zero_grad()
    generator_loss.backward()
    generator_optimizer.step()
