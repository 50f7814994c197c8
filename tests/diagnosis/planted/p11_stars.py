"""Light curves of stars, one compressed file a night, are folded into a classifier's input."""

import gzip
import json
import random
import tempfile
from pathlib import Path

import torch
from torch import nn

TRUTH = {"regime": ("overhead", "idle"), "remedy": ("host-code", "loader")}


def write_nights(folder, nights=24, stars=160):
    dice = random.Random(3)
    for night in range(nights):
        seen = {f"star{i}": round(dice.random(), 5) for i in range(stars)}
        with gzip.open(folder / f"night{night}.json.gz", "wt") as file:
            json.dump({"night": night, "flux": seen, "comment": "x" * 2000}, file)


def read_nights(folder):
    nights = []
    for path in sorted(folder.glob("*.gz")):
        with gzip.open(path, "rt") as file:
            nights.append(list(json.load(file)["flux"].values()))
    return torch.tensor(nights).T


def _step(read_once):
    torch.manual_seed(0)
    folder = Path(tempfile.mkdtemp())
    write_nights(folder)
    model = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 3))
    kept = read_nights(folder) if read_once else None

    @torch.no_grad()
    def step():
        curves = read_nights(folder) if kept is None else kept
        noise = [model(curves + 0.01 * i) for i in range(16)]
        return torch.stack(noise).softmax(-1).mean(0)

    return step


def make_step():
    return _step(read_once=False)


def make_step_fixed():
    return _step(read_once=True)
