"""Trains a reader of traffic signs; how pictures are changed for training stands in a settings file of the project."""
import json
import os
import sys
import tempfile
import time
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "cause": "The settings file is opened and parsed again at every access of `settings.current`, several times for every picture; it should be read once.",
    "lines": ["return json.load(f)", "with open(self.path) as f:", "def current(self):", "level = self.settings.current[\"augment\"][\"noise\"]",
              "low, high = self.settings.current[\"augment\"][\"brightness\"]", "shift = self.settings.current[\"augment\"][\"shift\"]", "for images, labels in loader:"],
    "says": ["json", "pars", "settings", "file", "property|current", "__getitem__", "loader|data ?set", "i/o|disk|read", "python|host", "repeat"],
    "remedy": ["once", "cache", "cached_property", "lru_cache", "__init__", "precomput", "hoist", "keep|store", "outside", "at (the )?start"],
}

CLASSES = 600


def write_settings(path):
    names = {f"sign_{i:03d}": {"id": i, "group": i % 7, "title": f"sign number {i}", "shape": ["round", "square"][i % 2]} for i in range(CLASSES)}
    with open(path, "w") as f:
        json.dump({"classes": names, "augment": {"noise": 0.1, "brightness": [0.8, 1.2], "shift": 2}}, f, indent=2)


class Settings:
    def __init__(self, path):
        self.path = path

    @property
    def current(self):
        with open(self.path) as f:
            return json.load(f)


class SettingsMended:
    def __init__(self, path):
        self.current = Settings(path).current


class Signs(Dataset):
    def __init__(self, settings, count=1024):
        g = torch.Generator().manual_seed(0)
        self.settings = settings
        self.labels = torch.randint(0, 16, (count,), generator=g)
        self.images = torch.rand(16, 3, 24, 24, generator=g)[self.labels]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        low, high = self.settings.current["augment"]["brightness"]
        image = self.images[i] * (low + (high - low) * torch.rand(()))
        level = self.settings.current["augment"]["noise"]
        image = image + level * torch.randn(image.shape)
        shift = self.settings.current["augment"]["shift"]
        dx, dy = torch.randint(-shift, shift + 1, (2,)).tolist()
        return image.roll((dy, dx), (1, 2)), self.labels[i]


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "settings.json")
        write_settings(path)
        data = Signs((SettingsMended if "--mended" in sys.argv else Settings)(path))
        loader = DataLoader(data, batch_size=32, shuffle=True)
        net = nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(24, 32, 3, padding=1), nn.ReLU(),
                            nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(288, 16))
        opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
        start = time.perf_counter()
        for epoch in range(4):
            for images, labels in loader:
                loss = F.cross_entropy(net(images), labels)
                opt.zero_grad()
                loss.backward()
                opt.step()
            print(f"epoch {epoch}: loss {loss.item():.4f}")
        print(f"{time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    main()
