"""What each process of ``hogwild.py`` runs."""

import os

import torch
import torch.nn.functional as F
from torch import optim


def train(rank, args, model, dataset):
    torch.manual_seed(1 + rank)
    loader = torch.utils.data.DataLoader(dataset, batch_size=args.batch_size, shuffle=True)
    optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    for epoch in range(1, args.epochs + 1):
        model.train()
        for batch_idx, (data, target) in enumerate(loader):
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            loss.backward()
            optimizer.step()
            if batch_idx % 10 == 0:
                print(f"{os.getpid()}\tTrain Epoch: {epoch} [{batch_idx}/{len(loader)}]\tLoss: {loss.item():.6f}")


def test(model, dataset):
    model.eval()
    total = 0
    with torch.no_grad():
        for data, target in torch.utils.data.DataLoader(dataset, batch_size=16):
            total += F.nll_loss(model(data), target, reduction="sum").item()
    print(f"\nTest set: Average loss: {total / len(dataset):.4f}\n")
