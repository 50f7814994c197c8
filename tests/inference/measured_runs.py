"""Profilers that print nothing, their runs as contexts, and their raw samples."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rooflight.inference import Profiler


def quiet(
    folder: Path, *, device: Any = "cpu", clock: Any = time.perf_counter_ns, on_step: Any = None, **settings: Any
) -> Profiler:
    """A profiler that measures from the first run on, prints nothing and saves to ``x`` in the folder."""
    base = {"output_dir": str(folder), "run_name": "x", "warmup_runs": 0, "print_per_run": False}
    return Profiler(base | settings, device=device, clock=clock, on_step=on_step)


@contextmanager
def run_of(prof: Profiler, **settings: Any) -> Iterator[None]:
    """A run of what is inside. It is not ended by an exception: some tests look at what is open then."""
    prof.begin_run(**settings)
    yield
    prof.end_run()


def samples(prof: Profiler) -> list[tuple[int, int, float]]:
    """KV bin, tokens and KV length of each step."""
    columns = prof.results.samples.columns()
    return list(zip(*(columns[name].tolist() for name in ("kv_bin", "tokens", "kv_length")), strict=True))
