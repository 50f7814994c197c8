"""A sweep that is killed again and again: ``python killed.py FOLDER KILLS SHAPES`` prints how many kills hit it.

Not a test itself: ``test_killed.py`` starts it, in a process without threads, so that each run can be a fork.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

from rooflight.costs.operators import registry
from rooflight.costs.operators.sizes import ADD, Progression
from rooflight.records.samples import Row, Status
from rooflight.sampling import store as provenance
from rooflight.sampling.job import Job, run
from rooflight.sampling.sweeps import Grid, PointSweep

WORK_S = 0.0003


class InstantSampler:
    """Rows that cost next to nothing."""

    kind = "cpu"

    def row(self, operator, shape):
        time.sleep(WORK_S)
        return Row(shape=dict(shape), status=Status.OK, samples_s={"step": (1e-6,) * 7}, when="now")


def sweep(folder: Path, shapes: int) -> None:
    operator = registry.find("copy")
    grid = Grid(operator=operator, axes=(("elements", Progression(1, 1, shapes, ADD)),))
    run(Job(operator=operator, dtype="float32", out=folder), PointSweep(grid), InstantSampler())  # type: ignore[arg-type]


def main(folder: Path, kills: int, shapes: int) -> None:
    provenance.environment_of("cpu")  # imports torch once, not in every child
    random.seed(0)
    hits = 0
    for _ in range(kills):
        child = os.fork()
        if child == 0:
            sweep(folder, shapes)
            os._exit(0)
        time.sleep(random.uniform(0.0, 0.03))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        hits += os.WIFSIGNALED(status)
    sweep(folder, shapes)
    print(hits)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
