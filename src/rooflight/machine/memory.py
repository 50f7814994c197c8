"""Memory that this process takes now, and the most it ever took. Counters are read: nothing is reset, nothing waits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final, NamedTuple

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
