"""What the sampler of ``rooflight run`` costs the thread that it looks at, in pairs.

    python benchmarks/sampling_cost.py [--pairs 40]

Two programs, one of torch's ops and one of Python alone, run for a quarter of a second with the sampler and without it
in turn, in one process: the thread's CPU time for the same work, each pair in the other order than the one before. The
figure is the median over the pairs of the relative difference, with its quartiles; beside it what the handler itself
ran, which a loud machine does not blur. Ends with 1 where that is above 1 %.
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
        sampler = Sampler(lambda: False)
        handler = Timed(sampler)
        seconds(work, turns, sampler)  # what a line is, it is asked once
        more, handled = [], []
        for number in range(pairs):
            order = (False, True) if number % 2 else (True, False)
            handler.ran_s = 0.0
            took = {sampled: seconds(work, turns, sampler if sampled else None) for sampled in order}
            more.append(took[True] / took[False] - 1)
            handled.append(handler.ran_s / took[True])
        low, middle, high = statistics.quantiles(more, n=4)
        own = statistics.median(handled)
        print(f"{name}: {middle:+.2%} ({low:+.2%} to {high:+.2%}); the handler itself {own:.2%}")
        missed |= own > MOST
    return int(missed)


def seconds(work, turns: int, sampler: Sampler | None) -> float:
    """CPU time of this thread."""
    if sampler is not None:
        sampler.start()
    begin = time.thread_time()
    work(turns)
    took = time.thread_time() - begin
    if sampler is not None:
        sampler.stop()
    return took


class Timed:
    """Takes the place of what a sampler's handler calls, and sums its CPU time."""

    def __init__(self, sampler: Sampler) -> None:
        self.ran_s, self._look = 0.0, sampler._ticks._look
        sampler._ticks._look = self

    def __call__(self, frame) -> None:
        begin = time.thread_time()
        self._look(frame)
        self.ran_s += time.thread_time() - begin


if __name__ == "__main__":
    sys.exit(main())
