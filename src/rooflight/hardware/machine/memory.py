"""Memory of this process, now and at most, and what a fresh page of it costs."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Final, NamedTuple

import numpy as np

_STATM: Final = Path("/proc/self/statm")


class Memory(NamedTuple):
    """Bytes held now, and at most so far."""

    held_bytes: int
    peak_bytes: int


def host_memory() -> Memory | None:
    """Resident memory of this process; None where the operating system has no such counters."""
    try:
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        held = int(_STATM.read_text().split()[1]) * resource.getpagesize() if _STATM.is_file() else peak
    except (ImportError, OSError, ValueError, IndexError):
        return None
    return Memory(held, max(peak, held))


def cuda_memory() -> Memory:
    """Memory of tensors on the current CUDA device, by torch's allocator; the peak since the program reset it."""
    import torch

    return Memory(torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated())


_BYTES = 16 << 20
_TIMES = 3


def fresh_page_s(clock: Callable[[], float] = process_time) -> float:
    """Seconds of CPU of the first touch of a page that the system gives, zeroed: the best of three passes over 16 MB,
    about 20 ms in all. CPU time does not count the turns of other programs.
    """
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
