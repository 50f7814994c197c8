"""Scores a segmentation of tissue, slide by slide and class by class."""

import torch
from torch import nn

TRUTH = {"regime": ("overhead",), "remedy": "vectorise"}


def overlap_each(masks, truth, classes=9):
    scores = torch.zeros(len(masks), classes)
    for i in range(len(masks)):
        for c in range(classes):
            found, right = masks[i] == c, truth[i] == c
            both, either = (found & right).sum(), (found | right).sum()
            scores[i, c] = both / (either + 1e-6)
    return scores


def overlap_all(masks, truth, classes=9):
    found, right = (nn.functional.one_hot(each.flatten(1), classes).bool() for each in (masks, truth))
    return (found & right).sum(1) / ((found | right).sum(1) + 1e-6)


def _step(score):
    torch.manual_seed(0)
    model, slides = nn.Conv2d(3, 9, 3, padding=1), torch.randn(48, 3, 12, 12)
    truth = torch.randint(0, 9, (48, 12, 12))

    @torch.inference_mode()
    def step():
        return score(model(slides).argmax(1), truth)

    return step


def make_step():
    return _step(overlap_each)


def make_step_fixed():
    return _step(overlap_all)
