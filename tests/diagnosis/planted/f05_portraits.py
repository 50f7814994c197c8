"""Adversarial training of a generator of small portraits: one step of each network."""

import torch
from torch import nn
from torch.nn import functional as F

TRUTH = {"regime": ("compute",), "remedy": ("unused-gradients",)}


def up(wide, out):
    return nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(wide, out, 3, padding=1), nn.ReLU())


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Linear(64, 128 * 16)
        self.body = nn.Sequential(up(128, 96), up(96, 64), up(64, 32), nn.Conv2d(32, 3, 3, padding=1), nn.Tanh())

    def forward(self, code):
        return self.body(self.start(code).view(-1, 128, 4, 4))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(32, 64, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(64 * 64, 1),
        )

    def forward(self, images):
        return self.body(images)


class Game:
    def __init__(self, detach):
        torch.manual_seed(0)
        self.generator, self.critic, self.detach = Generator(), Critic(), detach
        self.of_generator = torch.optim.Adam(self.generator.parameters(), 1e-4, fused=True)
        self.of_critic = torch.optim.Adam(self.critic.parameters(), 1e-4, fused=True)

    def train_critic(self, real, fake):
        shown = fake.detach() if self.detach else fake
        loss = F.softplus(-self.critic(real)).mean() + F.softplus(self.critic(shown)).mean()
        self.of_critic.zero_grad()
        loss.backward(retain_graph=not self.detach)
        self.of_critic.step()
        return loss

    def train_generator(self, fake):
        loss = F.softplus(-self.critic(fake)).mean()
        self.of_generator.zero_grad()
        loss.backward()
        self.of_generator.step()
        return loss


def _step(detach):
    game = Game(detach)
    real, code = torch.rand(16, 3, 32, 32) * 2 - 1, torch.randn(16, 64)

    def step():
        fake = game.generator(code)
        losses = game.train_critic(real, fake), game.train_generator(fake)
        return torch.stack(losses).detach()

    return step


def make_step():
    return _step(False)


def make_step_fixed():
    return _step(True)
