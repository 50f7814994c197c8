"""Asynchronous: one task trains, another brings batches by a queue, and a third logs; workers persist over epochs."""

import asyncio

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


async def bring(batches):
    loader = DataLoader(TensorDataset(torch.arange(48.0).view(48, 1)), 8, num_workers=2, persistent_workers=True)
    for _ in range(3):
        for (x,) in loader:
            await batches.put(x / 48)
    await batches.put(None)


async def train(batches, losses):
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.NAdam(model.parameters(), lr=0.02)
    while (x := await batches.get()) is not None:
        optimizer.zero_grad()
        loss = (model(x) - x.sin()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        await asyncio.sleep(0)


async def main():
    torch.manual_seed(3)
    batches, losses = asyncio.Queue(2), []
    await asyncio.gather(bring(batches), train(batches, losses))
    print(len(losses), losses[0], losses[-1])


asyncio.run(main())
