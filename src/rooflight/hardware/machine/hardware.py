"""The CPU's caches, main memory and cores, and the GPU that torch can use."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rooflight.hardware.devices.calibrations import DeviceKind

_CPUS = Path("/sys/devices/system/cpu")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """One level of data cache: the size of one instance and how many instances the usable cores reach."""

    name: str
    instance_bytes: int
    instance_count: int

    def capacity_bytes(self, thread_count: int) -> int:
        """Bytes that ``thread_count`` threads, each on its own core, can fill: private caches add up, a shared one does
        not.
        """
        return self.instance_bytes * min(self.instance_count, max(1, thread_count))

    def share_bytes(self, thread_count: int) -> int:
        """Bytes of this level per thread, of ``thread_count`` threads."""
        return self.capacity_bytes(thread_count) // max(1, thread_count)


def usable_cores() -> tuple[int, ...]:
    """The cores this process may run on (affinity), not those of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


@functools.cache
def data_caches(cores: tuple[int, ...] | None = None, *, root: Path = _CPUS) -> tuple[Cache, ...]:
    """Data and unified caches from the nearest level outwards; empty where the system lists none (not Linux)."""
    instances: dict[int, dict[str, int]] = {}
    for core in usable_cores() if cores is None else cores:
        for index in sorted((root / f"cpu{core}" / "cache").glob("index*")):
            try:
                kind, level, size, sharers = (
                    (index / name).read_text().strip() for name in ("type", "level", "size", "shared_cpu_list")
                )
                if kind != "Instruction":
                    unit = _UNITS.get(size[-1:], 1)
                    instances.setdefault(int(level), {})[sharers] = int(size.rstrip("KMG")) * unit
            except (OSError, ValueError):
                continue  # virtual machines hide single fields: the other levels are listed all the same
    return tuple(
        Cache(name=f"L{level}", instance_bytes=max(sizes.values()), instance_count=len(sizes))
        for level, sizes in sorted(instances.items())
        if max(sizes.values()) > 0
    )


@functools.cache
def memory_bytes() -> int | None:
    """Main memory this process can use; None where the system does not report it."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):  # absent outside containers, "max" where there is no limit
        return total
    return min(total, limit)


def cuda_name(number: int | None = None) -> str | None:
    """The name of GPU ``number``, or of the one that torch would use; None without one, or without torch."""
    try:
        import torch
    except ImportError:
        return None
    return str(torch.cuda.get_device_name(number)) if torch.cuda.is_available() else None


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
