"""Trains on photographed plates that lie compressed in memory; decoded pictures are kept for the next epoch."""
import functools
import io
import sys
import time
import zlib
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "cause": "The cache of decoded pictures holds 128 entries, but an epoch visits 480 in the same order: each entry is thrown out before it is asked for again (no hits), and every picture is decoded anew.",
    "lines": ["self.decode = functools.lru_cache(maxsize=slots)(self.read)", "image = torch.from_numpy(self.decode(i).copy())", "np.load(io.BytesIO(zlib.decompress(self.blobs[i])))",
              "def __init__(self, slots=128", "for images, labels in loader:", "return self.smooth(raw)", "out = (out + np.roll"],
    "says": ["cache", "lru", "decod", "decompress|zlib", "np\\.load|numpy", "__getitem__", "loader|data ?set", "evict|miss|hit", "read|smooth", "repeat"],
    "remedy": ["maxsize", "larger|bigger|big enough|enlarge|increase", "unbounded|None", "whole (data ?set|epoch)", "once", "all (the )?(pictures|images|items|samples)", "precomput|decode.*(ahead|before)",
               "cache", "workers?"],
}


class Plates(Dataset):
    def __init__(self, slots=128, count=480):
        rng = np.random.default_rng(0)
        self.labels = rng.integers(0, 8, count)
        base = rng.integers(0, 255, (8, 3, 96, 96), dtype=np.uint8)
        self.blobs = []
        for label in self.labels:
            buffer = io.BytesIO()
            np.save(buffer, base[label] // 32 * 32 + rng.integers(0, 32, (3, 96, 96), dtype=np.uint8))
            self.blobs.append(zlib.compress(buffer.getvalue(), 1))
        self.decode = functools.lru_cache(maxsize=slots)(self.read)

    def read(self, i):
        raw = np.load(io.BytesIO(zlib.decompress(self.blobs[i]))).astype(np.float32) / 255
        return self.smooth(raw)

    def smooth(self, raw):
        out = raw
        for axis in (1, 2):
            for _ in range(4):
                out = (out + np.roll(out, 1, axis) + np.roll(out, -1, axis)) / 3
        return np.ascontiguousarray(out[:, ::3, ::3])

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        image = torch.from_numpy(self.decode(i).copy())
        return image, int(self.labels[i])


def main():
    torch.manual_seed(0)
    data = Plates(slots=None) if "--mended" in sys.argv else Plates()
    loader = DataLoader(data, batch_size=32)
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1),
                        nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 8))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    start = time.perf_counter()
    for epoch in range(10):
        for images, labels in loader:
            loss = F.cross_entropy(net(images), labels)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if epoch % 3 == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}")
    print(f"trained in {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    main()
