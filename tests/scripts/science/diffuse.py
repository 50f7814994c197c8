"""Diffusion on points: after each epoch twenty calls under no_grad draw samples, with computation between them."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from tqdm.auto import tqdm


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(50, 16)
        self.joint = nn.Sequential(nn.Linear(18, 32), nn.GELU(), nn.Linear(32, 2))

    def forward(self, x, t):
        return self.joint(torch.cat((x, self.time(t)), dim=-1))


class NoiseScheduler:
    def __init__(self, num_timesteps):
        self.num_timesteps = num_timesteps
        self.betas = torch.linspace(1e-4, 0.02, num_timesteps)
        self.alphas_cumprod = torch.cumprod(1.0 - self.betas, dim=0)

    def add_noise(self, x, noise, t):
        a = self.alphas_cumprod[t].sqrt().reshape(-1, 1)
        return a * x + (1 - a**2).sqrt() * noise

    def step(self, residual, t, sample):
        a = self.alphas_cumprod[t]
        mean = (sample - self.betas[t] / (1 - a).sqrt() * residual) / (1 - self.betas[t]).sqrt()
        return mean + (self.betas[t].sqrt() * torch.randn_like(sample) if t > 0 else 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_epochs", type=int, default=1)
    parser.add_argument("--train_batch_size", type=int, default=64)
    parser.add_argument("--num_timesteps", type=int, default=20)
    config = parser.parse_args()
    torch.manual_seed(42)
    points = TensorDataset(torch.randn(8000, 2) * torch.tensor([1.0, 0.1]))
    dataloader = DataLoader(points, batch_size=config.train_batch_size, shuffle=True, drop_last=True)
    model, scheduler = MLP(), NoiseScheduler(config.num_timesteps)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, frames = [], []
    for epoch in range(config.num_epochs):
        model.train()
        for (batch,) in tqdm(dataloader, desc=f"Epoch {epoch}"):
            noise = torch.randn(batch.shape)
            timesteps = torch.randint(0, config.num_timesteps, (len(batch),)).long()
            loss = F.mse_loss(model(scheduler.add_noise(batch, noise, timesteps), timesteps), noise)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach().item())
        model.eval()
        sample = torch.randn(500, 2)
        for t in tqdm(reversed(range(config.num_timesteps)), total=config.num_timesteps):
            with torch.no_grad():
                residual = model(sample, torch.full((500,), t))
            sample = scheduler.step(residual, t, sample)
        frames.append(sample.numpy())
    torch.save(model.state_dict(), "model.pth")
    np.save("loss.npy", np.array(losses))
    np.save("frames.npy", np.stack(frames))
    print("last loss", losses[-1])
