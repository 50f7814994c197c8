"""Clicks arrive as lines of JSON and are scored in batches."""

import json
import random

import torch
from torch import nn

TRUTH = {"regime": ("overhead",), "remedy": "host-code"}

FIELDS = ("age", "price", "hour", "depth")


def lines_of(count=1500):
    dice = random.Random(0)
    events = (
        {"user": {f: dice.random() for f in FIELDS}, "page": "home/" * 8, "tags": list("abcdefgh")}
        for _ in range(count)
    )
    return [json.dumps(event) for event in events]


def parse(lines):
    rows = []
    for line in lines:
        event = json.loads(line)
        rows.append([float(event["user"][field]) for field in FIELDS])
    return torch.tensor(rows)


def _step(parsed_before):
    torch.manual_seed(0)
    lines = lines_of()
    rows = parse(lines) if parsed_before else None
    model = nn.Sequential(nn.Linear(4, 192), nn.ReLU(), nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 1))

    @torch.no_grad()
    def step():
        return model(parse(lines) if rows is None else rows).sigmoid()

    return step


def make_step():
    return _step(parsed_before=False)


def make_step_fixed():
    return _step(parsed_before=True)
