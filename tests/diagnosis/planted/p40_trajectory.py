"""A particle filter keeps the whole path of its particles."""

import torch

TRUTH = {"regime": ("memory",), "remedy": "copies"}


def move(places, step):
    return places + 0.1 * torch.sin(places.flip(-1) + 0.1 * step)


def follow(start, length):
    path, places = start.unsqueeze(1), start
    for step in range(length):
        places = move(places, step)
        path = torch.cat([path, places.unsqueeze(1)], dim=1)
    return path


def follow_listed(start, length):
    path = [start]
    for step in range(length):
        path.append(move(path[-1], step))
    return torch.stack(path, dim=1)


def _step(function):
    torch.manual_seed(0)
    start = torch.randn(400, 4)

    @torch.no_grad()
    def step():
        path = function(start, 160)
        return path.mean(1), path[:, -1]

    return step


def make_step():
    return _step(follow)


def make_step_fixed():
    return _step(follow_listed)
