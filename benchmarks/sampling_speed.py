"""Shapes that `rooflight sample` samples a second: small ops, forward and backward, cold caches, every row kept.

    python benchmarks/sampling_speed.py [THREADS]

The bar is 20 a second on the CPU. What a row is made of is told beside: tensors made, caches emptied, samples.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from rooflight.costs.operators import registry
from rooflight.hardware.machine.timing import flush_caches
from rooflight.sampling.job import Job, run
from rooflight.sampling.runner import Repeats, Sampler, pinned
from rooflight.sampling.sweeps import PointSweep, Shapes

SMALL = {
    "gemm": [[16 * n, 64, 64] for n in range(1, 61)],
    "linear1": [[1, 1, 8 * n, 128] for n in range(1, 61)],
    "layernorm": [[1, 8 * n, 128] for n in range(1, 61)],
    "gelu": [[1, 1, 8 * n, 128] for n in range(1, 61)],
    "softmax": [[1, 1, 2, 4 * n] for n in range(1, 61)],
    "flash_atten": [[1, 1, 2, 4 * n, 64] for n in range(1, 61)],
    "res_add": [[1, 8 * n, 128] for n in range(1, 61)],
    "swiglu": [[8 * n, 128] for n in range(1, 61)],
    "copy": [[1024 * n] for n in range(1, 61)],
}


def main() -> None:
    with pinned(int(sys.argv[1]) if len(sys.argv) > 1 else None) as threads:
        sample(threads)


def sample(threads: int) -> None:
    flush = flush_caches()
    began = time.perf_counter()
    for _ in range(20):
        flush()
    print(f"{threads} threads; emptying the caches takes {(time.perf_counter() - began) / 20 * 1e3:.2f} ms")
    sampler = Sampler("cpu", "float32", Repeats())
    print(f"{'operator':12} {'shapes/s':>9} {'samples a direction':>20} {'median row':>11}")
    with tempfile.TemporaryDirectory() as folder:
        for name, values in SMALL.items():
            operator = registry.find(name)
            job = Job(operator=operator, dtype="float32", out=Path(folder))
            sweep = PointSweep(Shapes(operator, tuple(values)))
            sampler.warm_up(operator, operator.shape(values[-1]))
            began = time.perf_counter()
            outcome = run(job, sweep, sampler)
            elapsed_s = time.perf_counter() - began
            with job.store("cpu") as store:
                rows = list(store.rows.values())
            counts = [len(samples) for row in rows for samples in row.samples_s.values()]
            spent = sorted(row.spent_s for row in rows)[len(rows) // 2]
            speed = outcome.added / elapsed_s
            print(f"{name:12} {speed:9.1f} {sum(counts) / len(counts):20.1f} {spent * 1e3:8.1f} ms")


if __name__ == "__main__":
    main()
