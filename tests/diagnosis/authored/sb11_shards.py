"""Trains a ranking model on features that live in the shards of a remote store."""
import sys
import time
from concurrent.futures import ThreadPoolExecutor
import torch
from torch import nn

TRUTH = {
    "cause": "The result of each request is awaited right after it was submitted, so the eight shards are asked one after the other in spite of the pool.",
    "lines": ["parts.append(pool.submit(store.fetch, shard, keys).result())", "rows = gather(pool, store, keys)", "time.sleep(self.latency)"],
    "says": [r"\.?result\(?", "future", "one after (the )?(other|another)", "serial", "sequential", "wait", "asleep|sleep", "fetch", "submit", "thread", "latency"],
    "remedy": ["submit (them )?all", "all .*(first|before|at once|together)", r"\.map\b|pool\.map|executor\.map", "concurrent|parallel|overlap", "as_completed", "gather",
               "prefetch", "then (collect|wait|await)", "in advance|ahead"],
}
MENDED = "--mended" in sys.argv


class Store:
    def __init__(self, shards=8, width=24, latency=0.011):
        gen = torch.Generator().manual_seed(0)
        self.tables = [torch.randn(5000, width, generator=gen) for _ in range(shards)]
        self.latency = latency

    def fetch(self, shard, keys):
        time.sleep(self.latency)
        return self.tables[shard][keys]


def gather(pool, store, keys):
    if MENDED:
        waiting = [pool.submit(store.fetch, shard, keys) for shard in range(len(store.tables))]
        parts = [future.result() for future in waiting]
    else:
        parts = []
        for shard in range(len(store.tables)):
            parts.append(pool.submit(store.fetch, shard, keys).result())
    return torch.cat(parts, 1)


def main():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(1)
    store = Store()
    net = nn.Sequential(nn.Linear(192, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    truth = torch.randn(192) / 14
    start = time.time()
    with ThreadPoolExecutor(8) as pool:
        for step in range(80):
            keys = torch.randint(5000, (1024,), generator=gen)
            rows = gather(pool, store, keys)
            target = torch.tanh(rows @ truth)
            score = net(rows).squeeze(1)
            loss = nn.functional.softplus(-(score[::2] - score[1::2]) * torch.sign(target[::2] - target[1::2])).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 20 == 19:
                print(f"step {step + 1}: loss {loss.item():.4f}")
    print(f"loop {time.time() - start:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
