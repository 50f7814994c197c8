"""Ends with ``sys.exit(3)`` from within a function and a finally."""

import sys

import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.Adam(model.parameters())


def main():
    try:
        for step in range(10):
            loss = model(torch.randn(4, 8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step == 7:
                sys.exit(3)
    finally:
        print("loss", repr(loss.item()))


main()
