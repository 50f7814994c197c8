"""A variational autoencoder; pictures are drawn by its decoder's layers alone."""

import argparse
import os

import numpy as np
import torch
from images import Digits
from torch import nn, optim
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()
torch.manual_seed(1)
os.makedirs("results", exist_ok=True)
train_loader = torch.utils.data.DataLoader(Digits(320), batch_size=32, shuffle=True)
test_loader = torch.utils.data.DataLoader(Digits(64, seed=6), batch_size=32)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(784, 40), nn.Linear(40, 8), nn.Linear(40, 8)
        self.fc3, self.fc4 = nn.Linear(8, 40), nn.Linear(40, 784)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, 784))
        return self.decode(mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)), mu, logvar


model = VAE()
optimizer = optim.Adam(model.parameters(), lr=1e-3)


def loss_function(recon_x, x, mu, logvar):
    bce = F.binary_cross_entropy(recon_x, x.view(-1, 784), reduction="sum")
    return bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


def picture(path, rows):
    grey = (rows.clamp(0, 1) * 255).to(torch.uint8).numpy().astype(np.uint8)
    with open(path, "wb") as f:
        f.write(b"P5 784 %d 255\n" % len(grey) + grey.tobytes())


for epoch in range(1, args.epochs + 1):
    model.train()
    for data, _ in train_loader:
        optimizer.zero_grad()
        recon, mu, logvar = model(data)
        loss = loss_function(recon, data, mu, logvar)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item()!r}")
    model.eval()
    with torch.no_grad():
        for i, (data, _) in enumerate(test_loader):
            recon, mu, logvar = model(data)
            if i == 0:
                picture(f"results/reconstruction_{epoch}.pgm", torch.cat([data.view(-1, 784)[:8], recon[:8]]))
        picture(f"results/sample_{epoch}.pgm", model.decode(torch.randn(64, 8)))
