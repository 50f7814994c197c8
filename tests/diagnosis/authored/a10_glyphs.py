"""Trains a recognizer of glyphs; samples come as arrays from a generator and are put together for each step."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "cause": "The batch is made with torch.tensor() of a Python list of NumPy arrays, which walks over all numbers one by one; np.stack and torch.from_numpy copy blocks.",
    "lines": ["x = torch.tensor([image for image, _ in samples])", "x, y = self.collate(samples)"],
    "says": ["torch\\.tensor", "collate", "list of (numpy|arrays|ndarrays)", "numpy|ndarray", "element|one by one", "from_numpy", "python|host", "conver"],
    "remedy": ["np\\.(stack|array|asarray)|numpy\\.(stack|array|asarray)", "from_numpy", "torch\\.stack", "as_tensor", "single array|one array", "default_collate"],
}


class Glyphs:
    def __init__(self, kinds=30):
        self.rng = np.random.default_rng(51)
        self.shapes = self.rng.random((kinds, 48, 48), dtype=np.float32)

    def sample(self):
        kind = int(self.rng.integers(len(self.shapes)))
        image = self.shapes[kind] + 0.4 * self.rng.random((48, 48), dtype=np.float32)
        return image[None], kind


def collate(samples):
    x = torch.tensor([image for image, _ in samples])
    y = torch.tensor([kind for _, kind in samples])
    return x, y


def collate_fixed(samples):
    x = torch.from_numpy(np.stack([image for image, _ in samples]))
    y = torch.tensor([kind for _, kind in samples])
    return x, y


class Trainer:
    def __init__(self, collate):
        torch.manual_seed(52)
        self.data, self.collate = Glyphs(), collate
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 5, stride=4, padding=2), nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(576, 30))
        self.opt = torch.optim.Adam(self.net.parameters(), lr=1e-3)

    def step(self):
        samples = [self.data.sample() for _ in range(64)]
        x, y = self.collate(samples)
        loss = F.cross_entropy(self.net(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()


def make_step():
    return Trainer(collate).step


def make_step_fixed():
    return Trainer(collate_fixed).step
