"""Envelopes and peaks of sonar pings, which are stored as their encoder gave them."""

import torch
import torch.nn.functional as F

TRUTH = {"regime": ("compute", "memory", "kernels"), "remedy": "half-on-cpu"}


def describe(pings):
    envelope = F.max_pool1d(pings.relu(), 9, 1, 4)
    quiet = -F.max_pool1d(-envelope, 9, 1, 4)
    peaks = quiet.amax(-1)
    return peaks.float(), quiet.amax(0).float(), F.max_pool1d(quiet, 16, 16).float().mean((1, 2))


def _step(dtype):
    torch.manual_seed(0)
    pings = torch.randn(24, 16, 1024).bfloat16().to(dtype)
    return torch.inference_mode()(lambda: describe(pings))


def make_step():
    return _step(torch.bfloat16)


def make_step_fixed():
    return _step(torch.float32)
