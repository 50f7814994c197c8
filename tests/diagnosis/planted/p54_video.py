"""Filters a clip along time, rows and columns in turn."""

import torch

TRUTH = {"regime": ("memory",), "remedy": "copies"}


def blend(x, k):
    y = x.clone()
    y[..., 1:] = x[..., 1:] * (1 - k) + x[..., :-1] * k
    return y


def along_all(clip, k):
    for _ in range(2):
        clip = blend(clip.permute(1, 2, 3, 0).contiguous(), k).permute(3, 0, 1, 2).contiguous()
        clip = blend(clip.permute(0, 1, 3, 2).contiguous(), k).permute(0, 1, 3, 2).contiguous()
        clip = blend(clip.clone(), k).contiguous().clone()
    return clip


def blend_in(x, dim, k):
    n = x.shape[dim]
    y = x.clone()
    y.narrow(dim, 1, n - 1).mul_(1 - k).add_(x.narrow(dim, 0, n - 1), alpha=k)
    return y


def along_all_in_place(clip, k):
    for _ in range(2):
        for dim in (0, 2, 3):
            clip = blend_in(clip, dim, k)
    return clip


def _step(function):
    torch.manual_seed(0)
    clip = torch.rand(16, 3, 160, 160)

    @torch.no_grad()
    def step():
        return function(clip, 0.3)

    return step


def make_step():
    return _step(along_all)


def make_step_fixed():
    return _step(along_all_in_place)
