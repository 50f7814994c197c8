"""A variational autoencoder after pytorch/examples: --no-accel would choose the CPU; sampling after each epoch."""

import argparse

import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=128)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--no-accel", action="store_true")
args = parser.parse_args()
use_accel = not args.no_accel and torch.accelerator.is_available()
device = torch.accelerator.current_accelerator() if use_accel else torch.device("cpu")
print(f"Using device: {device}")
kwargs = {"num_workers": 1, "pin_memory": True} if use_accel else {}
loader = DataLoader(
    TensorDataset(torch.rand(768, 1, 28, 28), torch.zeros(768)), args.batch_size, shuffle=True, **kwargs
)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(784, 400), nn.Linear(400, 20), nn.Linear(400, 20)
        self.fc3, self.fc4 = nn.Linear(20, 400), nn.Linear(400, 784)

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x):
        h = F.relu(self.fc1(x.view(-1, 784)))
        mu, logvar = self.fc21(h), self.fc22(h)
        std = torch.exp(0.5 * logvar)
        return self.decode(mu + torch.randn_like(std) * std), mu, logvar


model = VAE().to(device)
optimizer = optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(1, args.epochs + 1):
    model.train()
    train_loss = 0
    for place, (data, _) in enumerate(loader):
        data = data.to(device)
        optimizer.zero_grad()
        recon, mu, logvar = model(data)
        bce = F.binary_cross_entropy(recon, data.view(-1, 784), reduction="sum")
        loss = bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
    print(f"====> Epoch: {epoch} Average loss: {train_loss / len(loader.dataset):.4f}")
    with torch.no_grad():
        sample = model.decode(torch.randn(64, 20).to(device)).cpu()
        print(sample.view(64, 1, 28, 28).mean().item())
