"""What the first touch of a page of memory costs: on a virtual machine, several times as much as elsewhere."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from time import process_time

import numpy as np

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
