"""Trains a spotter of spoken commands on clips that are kept in one archive."""
import os
import sys
import tempfile
import time
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "cause": "Indexing an npz archive reads the whole array from the file at every access, so each clip costs a read of all clips.",
    "lines": ["clip = self.archive[\"clips\"][index]", "label = self.archive[\"labels\"][index]", "for clips, labels in loader:", "self.archive = np.load(path)"],
    "says": ["npz", "archive", r"np\.load|numpy", "whole (array|file)", "dataset|__getitem__|loader", r"\bread", "disk|file|zip"],
    "remedy": ["once", "in __init__|constructor", "keep .*(memory|array)", "memmap|mmap", "cache", "npy", "load .*(before|first|up front|at the start)", "preload", "worker"],
}
MENDED = "--mended" in sys.argv


class Commands(Dataset):
    def __init__(self, path):
        self.archive = np.load(path)
        self.length = len(self.archive["labels"])
        if MENDED:
            self.archive = {name: self.archive[name] for name in ("clips", "labels")}

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        clip = self.archive["clips"][index]
        label = self.archive["labels"][index]
        gain = 0.8 + 0.4 * ((index * 37) % 11) / 10
        return torch.from_numpy(clip * np.float32(gain)), int(label)


def record(path, count=900, length=2000):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 8, count)
    time_axis = np.arange(length) / 8000
    pitch = 200 + 150 * labels[:, None] + rng.normal(0, 15, (count, 1))
    clips = np.sin(2 * np.pi * pitch * time_axis) + 0.3 * rng.standard_normal((count, length))
    np.savez(path, clips=clips.astype(np.float32), labels=labels)


def main():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(1, 32, 65, stride=8), nn.ReLU(), nn.Conv1d(32, 48, 9, stride=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(48, 8))
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    loss_fn = nn.CrossEntropyLoss()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "commands.npz")
        record(path)
        loader = DataLoader(Commands(path), batch_size=20, shuffle=True, drop_last=True)
        start = time.time()
        for epoch in range(2):
            total = 0.0
            for clips, labels in loader:
                loss = loss_fn(net(clips[:, None]), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.detach()
            print(f"epoch {epoch}: loss {total.item() / len(loader):.4f}")
        print(f"loop {time.time() - start:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
