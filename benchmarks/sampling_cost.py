"""What the sampler of ``rooflight run`` costs the thread that it looks at, in pairs.

    python benchmarks/sampling_cost.py [--pairs 40]

Two programs, one of torch's ops and one of Python alone, run for a quarter of a second with the sampler and without it
in turn, in one process: the thread's CPU time for the same work, each pair in the other order than the one before. The
figure is the median over the pairs of the relative difference, with its quartiles. Ends with 1 above 1 %.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import torch

from rooflight.sources.capture.run.sampler import Sampler

MOST = 0.01


def of_torch(turns: int) -> None:
    x = torch.ones(64, 64)
    for _ in range(turns):
        x = (x @ x).tanh()


def of_python(turns: int) -> None:
    for _ in range(turns):
        sum(number * number for number in range(300))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40)
    pairs = parser.parse_args().pairs
    torch.set_num_threads(1)
    missed = False
    for name, work in (("ops of torch", of_torch), ("Python alone", of_python)):
        begin, turns = time.perf_counter(), 0
        while time.perf_counter() - begin < 0.25:
            work(100)
            turns += 100
        more = []
        for number in range(pairs):
            order = (False, True) if number % 2 else (True, False)
            took = {sampled: seconds(work, turns, sampled=sampled) for sampled in order}
            more.append(took[True] / took[False] - 1)
        low, middle, high = statistics.quantiles(more, n=4)
        print(f"{name}: {middle:+.2%} ({low:+.2%} to {high:+.2%})")
        missed |= middle > MOST
    return int(missed)


def seconds(work, turns: int, *, sampled: bool) -> float:
    """CPU time of this thread."""
    sampler = Sampler(lambda: False)
    if sampled:
        sampler.start()
    begin = time.thread_time()
    work(turns)
    took = time.thread_time() - begin
    if sampled:
        sampler.stop()
    return took


if __name__ == "__main__":
    sys.exit(main())
