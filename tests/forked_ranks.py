"""Ranks of a distributed test as real processes: one interpreter imports torch once, then forks a process a rank.

A worker script ends with ``forked_ranks.main(run)``. ``start(script, folder, worlds)`` runs it, one world after the
other; each rank's ``run(rank, world, folder)`` writes what it found to the folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path

SECONDS = 120


def start(script: Path, folder: Path, worlds: Sequence[int], **environment: str) -> None:
    """Run the worlds, of so many ranks each. Fails with what the ranks wrote to standard error."""
    command = [sys.executable, str(script), str(folder), *map(str, worlds)]
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS * len(worlds),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def main(run: Callable[[int, int, Path], None]) -> None:
    """In the worker: fork the ranks of each world and wait for them. Exits with 1 if one of them failed."""
    folder, worlds = Path(sys.argv[1]), [int(word) for word in sys.argv[2:]]
    context = get_context("fork")
    for world in worlds:
        ranks = [context.Process(target=_rank, args=(run, rank, world, folder)) for rank in range(world)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(SECONDS)
        failed = [rank for rank in ranks if rank.exitcode != 0]
        for rank in failed:
            rank.kill()
        if failed:
            sys.exit(1)


def _rank(run: Callable[[int, int, Path], None], rank: int, world: int, folder: Path) -> None:
    import warnings

    import torch
    import torch.distributed as dist

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(  # ranks meet at a file, so no port is needed
        "gloo",
        init_method=f"file://{folder}/meeting.{world}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=SECONDS / 2),
    )
    run(rank, world, folder)
    dist.barrier()
    dist.destroy_process_group()
