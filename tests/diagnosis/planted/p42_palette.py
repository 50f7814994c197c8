"""Recolours label maps: every label has its colour and its share of the picture."""

import torch

TRUTH = {"regime": ("memory",), "remedy": ("scan", "vectorise")}


def recolour(labels, colours):
    picture = torch.zeros(3, *labels.shape)
    shares = []
    for label, colour in enumerate(colours):
        here = labels == label
        picture = torch.where(here, colour.view(3, 1, 1, 1), picture)
        shares.append(here.float().mean())
    return picture, torch.stack(shares)


def recolour_by_index(labels, colours):
    shares = torch.bincount(labels.flatten(), minlength=len(colours)) / labels.numel()
    return colours[labels].movedim(-1, 0), shares


def _step(paint):
    torch.manual_seed(0)
    coarse = torch.randint(0, 32, (2, 40, 40))
    labels, colours = coarse.repeat_interleave(5, 1).repeat_interleave(5, 2), torch.rand(32, 3)

    @torch.no_grad()
    def step():
        picture, shares = paint(labels, colours)
        return picture.mean((1, 2, 3)), shares

    return step


def make_step():
    return _step(recolour)


def make_step_fixed():
    return _step(recolour_by_index)
