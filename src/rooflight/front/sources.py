"""Which files hold sessions: Rooflight's own, traces of torch's profiler, and formats that packages read.

A source takes the path of a file and returns a Session. A package announces one under the entry point group
``rooflight.sources``; the name of the entry is the suffix of the files, without a dot.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rooflight.front.device import Progress, log_progress
from rooflight.front.options import PLAIN, TraceOptions
from rooflight.records.archive import load
from rooflight.records.package import announced, need
from rooflight.records.session import Session
from rooflight.sources.traces.file.discovery import is_trace
from rooflight.sources.traces.file.kinds import foreign

ENTRY_POINT_GROUP = "rooflight.sources"

_TARGETS = (".py", ".json")  # suffixes of other kinds of targets


def is_session(path: str) -> bool:
    """Whether a target names a file with a session. A damaged one must be reported as damaged, not as no preset."""
    file = Path(path)
    if not file.is_file() or file.suffix not in _TARGETS:
        return file.is_file()
    return is_trace(file) or (file.suffix == ".json" and bool(foreign(file)))


def read_session(path: str, options: TraceOptions = PLAIN, progress: Progress = log_progress) -> Session:
    """The session in a file. Raises ValueError for a damaged file, and for options where it is no trace, and
    FileNotFoundError where there is none. How much of a trace is read goes to ``progress``.
    """
    file = Path(path)
    if is_trace(file):
        need("torch", "reading a trace")
        from rooflight.sources.traces.session import read_trace

        return read_trace(
            file,
            options.capture,
            model=options.model,
            execution_trace=options.execution_trace,
            progress=reading(file, progress),
        )
    options.refuse_for(path)
    name = file.suffix.removeprefix(".")
    source = announced(ENTRY_POINT_GROUP, name, f"read {file.suffix} files") if file.is_file() else None
    if source is None:
        if file.is_file() and (why := foreign(file)):
            raise ValueError(why)
        return load(file)
    found: object = source(file)
    if not isinstance(found, Session):
        raise ValueError(f"the source of {file.suffix} files returned {type(found).__name__}, not a Session")
    return found


def reading(file: Path, progress: Progress) -> Callable[[int, int], None]:
    """Says what percentage of a trace was read, each once, and then that its ops are worked out."""
    last = -1

    def read(done: int, size: int) -> None:
        nonlocal last
        percentage = 100 * done // size if size else 100
        if percentage != last:
            last = percentage
            progress(
                f"reading {file.name}: {percentage} %" if percentage < 100 else f"working out the ops of {file.name}"
            )

    return read
