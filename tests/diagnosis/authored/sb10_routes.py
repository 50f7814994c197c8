"""Plans a cable's route over mountains by the cross-entropy method; two processes rate the candidates."""
import sys
import time
from concurrent.futures import ProcessPoolExecutor
import multiprocessing
import numpy as np
import torch

TRUTH = {
    "cause": "The whole elevation map is pickled and sent to a process with each task; it should be given to the processes once, when they start.",
    "lines": ["jobs = [pool.submit(rate, terrain, part.numpy()) for part in candidates.chunk(2)]", "def rate(terrain, routes):", "costs = torch.cat([torch.from_numpy(job.result()) for job in jobs])"],
    "says": ["pickl|serializ", "terrain|map", "submit|pool|executor|process", "sen(d|t|ds)|transfer|ship|argument|pass(ed|ing)", "wait|result", "ipc|pipe|queue"],
    "remedy": ["initiali[sz]er", "shared[_ ]memory|share_memory", "once", "global", "memmap|mmap", "fork", "in the (worker|process)", "thread", "only .*(what|candidates|routes|needed)", "avoid (pickl|send)",
               "main process"],
}
MENDED = "--mended" in sys.argv
TERRAIN = None


def receive(terrain):
    global TERRAIN
    TERRAIN = terrain


def rate_here(routes):
    return rate(TERRAIN, routes)


def rate(terrain, routes):
    side = len(terrain)
    line = np.linspace(0, 1, routes.shape[1])
    x = (line * (side - 1)).astype(int)
    y = np.clip((0.5 + routes) * (side - 1), 0, side - 1).astype(int)
    height = terrain[y, x]
    climb = np.abs(np.diff(height, axis=1)).sum(1)
    bend = np.square(np.diff(routes, axis=1)).sum(1)
    return (climb + 40 * bend).astype(np.float32)


def mountains(side=1800):
    a, b = np.meshgrid(np.linspace(0, 9, side), np.linspace(0, 9, side))
    return (np.sin(a) * np.cos(1.3 * b) + 0.5 * np.sin(3.1 * a + b) + 0.2 * np.cos(7 * b)).astype(np.float32)


def main():
    gen = torch.Generator().manual_seed(0)
    terrain = mountains()
    mean, spread = torch.zeros(120), torch.full((120,), 0.2)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context, initializer=receive, initargs=(terrain if MENDED else None,)) as pool:
        list(pool.map(abs, range(8)))
        start = time.time()
        for step in range(80):
            candidates = mean + spread * torch.randn(1600, 120, generator=gen)
            if MENDED:
                jobs = [pool.submit(rate_here, part.numpy()) for part in candidates.split(800)]
            else:
                jobs = [pool.submit(rate, terrain, part.numpy()) for part in candidates.chunk(2)]
            costs = torch.cat([torch.from_numpy(job.result()) for job in jobs])
            elite = candidates[costs.topk(80, largest=False).indices]
            mean, spread = 0.7 * elite.mean(0) + 0.3 * mean, 0.7 * elite.std(0) + 0.3 * spread
            if step % 20 == 19:
                print(f"step {step + 1}: cost {costs.min().item():.4f}")
    print(f"loop {time.time() - start:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
