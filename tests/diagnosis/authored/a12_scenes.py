"""Trains a classifier of scenes on windows of large photographs whose colours are varied."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "cause": "Colours are varied on whole photographs of 320 x 320 pixels, of which a window of 80 x 80 is kept afterwards; all changes are per pixel, so the window should be cut first.",
    "lines": ["photos = vary(photos, gamma, saturation, angle)", "return window(photos, top, left)", "def vary(photos, gamma, saturation, angle):",
              "photos = photos.clamp(min=1e-4).pow(gamma)", "photos = grey + saturation * (photos - grey)", "return torch.einsum(\"nchw,dc->ndhw\", photos, turn).clamp(0, 1)"],
    "says": ["crop|window", "slice", "vary|jitter|augment", "discard|thrown away|cut away|unused|not used|unread", "whole|full", r"\bpow\b|einsum|clamp", "order", "colou?r"],
    "remedy": ["(crop|window|cut|slic)\\w*.*(first|before|earlier)", "before.*(colou?r|jitter|vary|augment)", "first", "swap|reorder|other order", "only (the|what|those).*(window|crop|kept|needed|used)"],
}

SIZE = 80


def vary(photos, gamma, saturation, angle):
    photos = photos.clamp(min=1e-4).pow(gamma)
    grey = photos.mean(1, keepdim=True)
    photos = grey + saturation * (photos - grey)
    c, s = math.cos(angle), math.sin(angle)
    turn = torch.tensor([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
    return torch.einsum("nchw,dc->ndhw", photos, turn).clamp(0, 1)


def window(photos, top, left):
    return photos[:, :, top:top + SIZE, left:left + SIZE]


def prepare(photos, gamma, saturation, angle, top, left):
    photos = vary(photos, gamma, saturation, angle)
    return window(photos, top, left)


def prepare_fixed(photos, gamma, saturation, angle, top, left):
    return vary(window(photos, top, left), gamma, saturation, angle)


def build(prepare):
    torch.manual_seed(55)
    net = nn.Sequential(nn.Conv2d(3, 16, 5, stride=4, padding=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
                        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 8))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(56)
    album = torch.rand(32, 3, 320, 320, generator=g)
    scenes = torch.randint(0, 8, (32,), generator=g)

    def step():
        picks = torch.randint(0, 32, (8,), generator=g)
        gamma, saturation, angle = torch.rand(3, generator=g).tolist()
        top, left = torch.randint(0, 320 - SIZE, (2,), generator=g).tolist()
        x = prepare(album[picks], 0.7 + 0.6 * gamma, 0.5 + saturation, 0.4 * angle - 0.2, top, left)
        loss = F.cross_entropy(net(x), scenes[picks])
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()
    return step


def make_step():
    return build(prepare)


def make_step_fixed():
    return build(prepare_fixed)
