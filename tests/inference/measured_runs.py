"""Runs of a profiler as contexts."""

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
