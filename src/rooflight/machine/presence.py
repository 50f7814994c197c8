"""The GPU that torch can use now, and the memory that is free now."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rooflight.machine.caches import memory_bytes

if TYPE_CHECKING:
    from rooflight.devices.calibrations import DeviceKind


def cuda_name() -> str | None:
    """The name of the GPU that torch would use; None without one, or without torch."""
    try:
        import torch
    except ImportError:
        return None
    return str(torch.cuda.get_device_name()) if torch.cuda.is_available() else None


def kind_here() -> DeviceKind:
    """ "cuda" where torch sees a GPU, else "cpu"."""
    return "cuda" if cuda_name() else "cpu"


def free_memory_bytes(kind: str) -> int | None:
    """Memory that a new process could take on ``"cpu"`` or ``"cuda"``; None where it is unknown."""
    if kind == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[0])
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return min(int(line.split()[1]) * 1024, memory_bytes() or 1 << 62)
    except OSError:
        pass
    return memory_bytes()
