"""Labels pictures' codes by the nearest of 24 prompts, which a text encoder reads."""

import torch
from torch import nn

TRUTH = {"regime": ("compute",), "remedy": ("constant-work",)}


class Labeller(nn.Module):
    def __init__(self, keep, width=128):
        super().__init__()
        self.keep, self.known = keep, None
        self.words = nn.Embedding(100, width)
        self.text = nn.GRU(width, width, batch_first=True)
        self.image = nn.Sequential(nn.Linear(768, 512), nn.ReLU(), nn.Linear(512, width))

    def labels(self, prompts):
        if self.known is not None:
            return self.known
        codes = nn.functional.normalize(self.text(self.words(prompts))[1][0], dim=-1)
        if self.keep:
            self.known = codes
        return codes

    def forward(self, images, prompts):
        return nn.functional.normalize(self.image(images), dim=-1) @ self.labels(prompts).T


def _step(keep):
    torch.manual_seed(0)
    model, images, prompts = Labeller(keep).eval(), torch.randn(64, 768), torch.randint(0, 100, (64, 24))

    @torch.inference_mode()
    def step():
        return model(images, prompts)

    return step


def make_step():
    return _step(False)


def make_step_fixed():
    return _step(True)
