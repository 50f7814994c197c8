"""Looks up passages: vectors are stored in sixteen bits and multiplied with care."""

import torch

TRUTH = {"regime": ("memory", "compute"), "remedy": ("casts", "lower-precision", "constant-work")}


def search(passages, questions):
    return (questions.float() @ passages.float().T).topk(10).values


def search_as_stored(passages, questions):
    return (questions @ passages.T).float().topk(10).values


def _step(function):
    torch.manual_seed(0)
    passages, questions = torch.randn(16_000, 256).bfloat16(), torch.randn(4, 256).bfloat16()
    return torch.inference_mode()(lambda: function(passages, questions))


def make_step():
    return _step(search)


def make_step_fixed():
    return _step(search_as_stored)
