"""A rank whose steps differ in length: what its profiler sees, with and without a barrier at each step's ends."""

from __future__ import annotations

import json
import time
from pathlib import Path

import forked_ranks
import torch.distributed as dist
from measured_runs import quiet


def run(rank: int, world: int, folder: Path) -> None:
    calls = []
    real = dist.barrier

    def counted(*args, **kwargs):
        calls.append(1)
        return real(*args, **kwargs)

    dist.barrier = counted
    prof = quiet(folder / "out", dist_barrier=True, warmup_runs=1)
    for _ in range(2):  # one warm-up run
        prof.begin_run(bsz=1)
        for _ in range(3):
            with prof.step_timing_ctx():
                time.sleep(0.05 * rank)
        prof.end_run()
    prof.save_all()
    found = {"rank": prof.rank, "world": prof.world, "disabled": prof.disabled, "barriers": len(calls),
             "max_ms": prof.results.figures(1)["stats"].max_ms}  # fmt: skip
    (folder / f"{world}_{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    forked_ranks.main(run)
