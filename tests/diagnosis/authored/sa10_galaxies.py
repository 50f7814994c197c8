"""Trains on spectra of galaxies that an archive hands out in shards; a thread pool fetches them."""
import concurrent.futures
import os
import sys
import tempfile
import time
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "cause": "Each shard is submitted to the pool and its result awaited at once, so fetching never overlaps with training; the next shard should be submitted before the present one is trained on.",
    "lines": ["yield pool.submit(archive.fetch, name).result()", "for x, kinds in shards(archive, names):", "time.sleep(self.delay)"],
    "says": ["result\\(\\)|\\.result", "submit", "wait|block|asleep|sleep|idle", "overlap", "pool|future|thread", "fetch", "shard", "loader"],
    "remedy": ["ahead|prefetch|pre-fetch", "before (the|training)", "next (shard|batch|one)", "overlap", "in advance|early|earlier", "pool\\.map|queue", "background", "several|more (at once|in flight)|parallel|concurrent"],
}

KINDS = 5


class Archive:
    delay = 0.045

    def __init__(self, folder):
        self.folder = folder

    def put(self, name, x, kinds):
        np.savez(os.path.join(self.folder, name), x=x, kinds=kinds)

    def fetch(self, name):
        time.sleep(self.delay)
        with np.load(os.path.join(self.folder, name + ".npz")) as f:
            return torch.from_numpy(f["x"]), torch.from_numpy(f["kinds"])


def fill(archive, count=25, rows=48, length=400):
    rng = np.random.default_rng(0)
    lines = rng.random((KINDS, length), dtype=np.float32)
    names = [f"shard{i:03d}" for i in range(count)]
    for name in names:
        kinds = rng.integers(0, KINDS, rows)
        archive.put(name, lines[kinds] + rng.standard_normal((rows, length), dtype=np.float32), kinds)
    return names


def shards(archive, names):
    with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
        for name in names:
            yield pool.submit(archive.fetch, name).result()


def shards_mended(archive, names, ahead=4):
    with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
        waiting = [pool.submit(archive.fetch, name) for name in names[:ahead]]
        for name in names[ahead:]:
            yield waiting.pop(0).result()
            waiting.append(pool.submit(archive.fetch, name))
        yield from (job.result() for job in waiting)


def main():
    if "--mended" in sys.argv:
        globals()["shards"] = shards_mended
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(1, 16, 9, stride=2), nn.ReLU(), nn.Conv1d(16, 32, 7, stride=2), nn.ReLU(),
                        nn.AdaptiveMaxPool1d(8), nn.Flatten(), nn.Linear(256, KINDS))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        archive = Archive(folder)
        names = fill(archive)
        start = time.perf_counter()
        for epoch in range(5):
            for x, kinds in shards(archive, names):
                loss = F.cross_entropy(net(x.unsqueeze(1)), kinds)
                opt.zero_grad()
                loss.backward()
                opt.step()
            print(f"epoch {epoch}: loss {loss.item():.4f}")
        print(f"trained in {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    main()
