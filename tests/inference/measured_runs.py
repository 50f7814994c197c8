"""Runs of a profiler as contexts, and its raw samples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rooflight.inference import Profiler


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
