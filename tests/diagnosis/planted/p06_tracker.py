"""Boxes of a detector are handed to a tracker that is written for plain numbers."""

import torch
from torch import nn

TRUTH = {"regime": ("overhead",), "remedy": ("sync", "vectorise")}


class Tracker:
    def __init__(self):
        self.tracks = []

    def update(self, box, score, label):
        left, top, right, bottom = box
        if score > 0.1 and right > left and bottom > top:
            self.tracks.append(((left + right) / 2, (top + bottom) / 2, label))


def by_index(boxes, scores, labels, tracker):
    for i in range(len(boxes)):
        box = [boxes[i, side].item() for side in range(4)]
        tracker.update(box, scores[i].item(), labels[i].item())


def by_list(boxes, scores, labels, tracker):
    for box, score, label in zip(boxes.tolist(), scores.tolist(), labels.tolist(), strict=True):
        tracker.update(box, score, label)


def _step(hand_over):
    torch.manual_seed(0)
    head, features = nn.Conv2d(32, 4 + 6, 1), torch.randn(1, 32, 24, 24)

    @torch.no_grad()
    def step():
        found = head(features).flatten(2).squeeze(0).T
        scores, labels = found[:, 4:].softmax(-1).max(-1)
        centre, size = found[:, :2], found[:, 2:4].exp()
        tracker = Tracker()
        hand_over(torch.cat([centre - size, centre + size], 1), scores, labels, tracker)
        return torch.tensor(tracker.tracks)

    return step


def make_step():
    return _step(by_index)


def make_step_fixed():
    return _step(by_list)
