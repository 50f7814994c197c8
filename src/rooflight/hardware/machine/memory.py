"""Memory of this process, now and at most, and what a fresh page of it costs."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import process_time
from typing import Final, NamedTuple

with suppress(ImportError):  # of Unix alone
    import resource

_STATM: Final = Path("/proc/self/statm")


class Memory(NamedTuple):
    """Bytes held now, and at most so far."""

    held_bytes: int
    peak_bytes: int


def host_memory() -> Memory | None:
    """Resident memory of this process; None where the operating system has no such counters."""
    try:
        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        held = int(_STATM.read_text().split()[1]) * resource.getpagesize() if _STATM.is_file() else peak
    except (NameError, OSError, ValueError, IndexError):
        return None
    return Memory(held, max(peak, held))


def cuda_memory() -> Memory:
    """Memory of tensors on the current CUDA device, by torch's allocator; the peak since the program reset it."""
    import torch

    return Memory(torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated())


def of_the_system() -> tuple[float, int]:
    """CPU seconds of the system for this thread so far, and pages that it gave it; zeros where it does not say."""
    try:
        usage = resource.getrusage(resource.RUSAGE_THREAD)
    except (NameError, AttributeError, OSError, ValueError):
        return 0.0, 0
    return usage.ru_stime, usage.ru_minflt


def fetched_s(system_s: float, pages: float) -> float:
    """Of so many CPU seconds of the system what it took at most for so many new pages: it does other things, too."""
    return min(system_s, pages * _MOST_PAGE_S)


_MOST_PAGE_S: Final = 5e-6  # a virtual machine took 1.9 to 2.9 µs, a quiet one 0.25
_BYTES = 16 << 20
_TIMES = 3


def fresh_page_s(clock: Callable[[], float] = process_time) -> float:
    """Seconds of CPU of the first touch of a page that the system gives, zeroed: the best of three passes over 16 MB,
    about 20 ms in all. CPU time does not count the turns of other programs.
    """
    import numpy as np  # the sampler of a script comes before the script's own first import of it

    found = []
    for _ in range(_TIMES):
        block = mmap.mmap(-1, _BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages = np.frombuffer(block, dtype=np.uint8)[:: mmap.PAGESIZE]
        begin = clock()
        pages[:] = 1
        found.append((clock() - begin) / len(pages))
        del pages
        block.close()
    return min(found)
