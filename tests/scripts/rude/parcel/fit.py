"""A module of a package, with relative imports and a parser of options that look like Rooflight's."""

import argparse
import os
import sys

import torch

from .net import net

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="fit")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--save")
    parser.add_argument("--json")
    args, rest = parser.parse_known_args()
    print(sys.argv[1:], os.path.basename(sys.argv[0]), __name__, __package__, __spec__.name, sys.path[0] == os.getcwd())
    print(args, rest, os.path.basename(__file__), sys.modules["__main__"].__dict__ is globals())
    torch.manual_seed(0)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(args.steps):
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(repr(loss.item()))
    torch.save(model.state_dict(), args.save)
