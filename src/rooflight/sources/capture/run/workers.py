"""Loader workers: processes that fetch batches look at their own lines, and leave what they saw for their parent."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, Final

import msgspec

from rooflight.records.account import Place
from rooflight.records.files import write_kept
from rooflight.records.timeline import HostLine, Within
from rooflight.sources.capture.run.sampler import INTERVAL_S, SHARE
from rooflight.sources.capture.time.host_lines import HostLines, Key

_EVERY: Final = 100  # samples: a worker that is killed leaves what it had written until then
_PARTS: Final = "worker-*.json"


class _WorkerLines(HostLines):
    """Lines of a worker, in a file that it writes every second."""

    def __init__(self, file: Path) -> None:
        super().__init__(INTERVAL_S, SHARE)
        self._file, self._seen = file, 0

    def take(self, key: Key, wall_s: float, ran_s: float, waited_s: float) -> None:
        """A sample, as of any thread."""
        super().take(key, wall_s, ran_s, waited_s)
        self._seen += 1
        if self._seen % _EVERY == 0:
            self.write()

    def write(self) -> None:
        """Leave what was seen so far."""
        own = [line for line in self.lines(1) if line.where is not None and line.within is Within.LOADER]
        with suppress(OSError, UnicodeEncodeError):  # a full disk, a file's name that is no text
            write_kept(self._file, msgspec.json.encode(own))


def watch_workers(folder: Path) -> None:
    """Workers of torch's loaders, forked or spawned with these hooks, leave their lines in a folder."""
    from torch.utils.data._utils import worker

    loop: Callable[..., Any] = worker._worker_loop

    @wraps(loop)
    def watched(*args: Any, **kwargs: Any) -> Any:
        with suppress(ValueError, AttributeError):  # not the main thread, or no such signal
            signal.signal(signal.SIGURG, signal.SIG_DFL)  # its parent's timer is not its own
        lines = _WorkerLines(folder / f"worker-{os.getpid()}.json")
        try:
            with lines.sampling():
                return loop(*args, **kwargs)
        finally:
            lines.write()

    worker._worker_loop = watched


def lines_of_workers(folder: Path, steps: int) -> tuple[HostLine, ...]:
    """Where the workers of a run were, of the program's own lines that a loader called: seconds of all workers, of one
    of so many steps; the longest first.
    """
    found: dict[Place | None, list[float]] = {}
    for path in folder.glob(_PARTS):
        with suppress(OSError, msgspec.DecodeError):
            for line in msgspec.json.decode(path.read_bytes(), type=list[HostLine]):
                both = found.setdefault(line.where, [0.0, 0.0])
                both[0] += line.seconds / steps
                both[1] += line.asleep_s / steps
    lines = (
        HostLine(where=where, within=Within.LOADER, seconds=seconds, asleep_s=asleep_s)
        for where, (seconds, asleep_s) in found.items()
    )
    return tuple(sorted(lines, key=lambda line: -line.seconds))
