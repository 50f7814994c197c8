"""Images and captions are brought together by a contrastive loss in both directions."""

import torch
import torch.nn.functional as F
from torch import nn

TRUTH = {"regime": ("compute",), "remedy": "repeated-work"}


class Matcher(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.see = nn.Sequential(
            nn.Conv2d(3, 32, 4, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, 2, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 64, width),
        )
        self.words, self.read = nn.Embedding(500, width), nn.GRU(width, width, batch_first=True)

    def encode_image(self, images):
        return F.normalize(self.see(images), dim=-1)

    def encode_text(self, captions):
        return F.normalize(self.read(self.words(captions))[0][:, -1], dim=-1)


def two_ways(model, images, captions):
    target = torch.arange(len(images))
    to_text = model.encode_image(images) @ model.encode_text(captions).T
    to_image = model.encode_text(captions) @ model.encode_image(images).T
    accuracy = ((model.encode_image(images) @ model.encode_text(captions).T).argmax(1) == target).float().mean()
    return F.cross_entropy(10 * to_text, target) + F.cross_entropy(10 * to_image, target), accuracy


def both_from_one(model, images, captions):
    target = torch.arange(len(images))
    to_text = model.encode_image(images) @ model.encode_text(captions).T
    accuracy = (to_text.argmax(1) == target).float().mean()
    return F.cross_entropy(10 * to_text, target) + F.cross_entropy(10 * to_text.T, target), accuracy


def _step(loss_of):
    torch.manual_seed(0)
    model = Matcher()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, captions = torch.randn(16, 3, 64, 64), torch.randint(0, 500, (16, 24))

    def step():
        loss, accuracy = loss_of(model, images, captions)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach(), accuracy

    return step


def make_step():
    return _step(two_ways)


def make_step_fixed():
    return _step(both_from_one)
