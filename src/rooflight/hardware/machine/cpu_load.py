"""The share of the CPU that other programs took during a measurement.

Calibrations and timed steps both use it, with one threshold from which on reports doubt a figure:
``records.measurement.BUSY_SHARE``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rooflight.hardware.machine.hardware import usable_cores

_TICKS_UNSURE: Final = 2  # the kernel counts whole ticks, user and system time separately


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTime:
    """Three readings at one moment, in seconds: the clock, the CPU time of this program, and the CPU time of all
    programs on ``cores`` cores.

    ``tick_s`` is the resolution of ``all_s``.
    """

    wall_s: float
    own_s: float
    all_s: float
    cores: int
    tick_s: float = 0.0


Reader = Callable[[], CpuTime | None]


class Bystander:
    """Measures the share of the CPU that other programs take, from the moment when it is made.

    ``read`` returns the CPU times until now; tests pass their own.
    """

    def __init__(self, read: Reader | None = None) -> None:
        self._read = read or cpu_time
        self._start = self._read()

    def others(self) -> float | None:
        """The share since the start, 0 to 1, of the cores that this program may use; None where the system does not
        report it.

        It is the least that others can have taken: a few milliseconds have only a few ticks, and ticks that may be this
        program's do not count as theirs.
        """
        start, end = self._start, self._read()
        if start is None or end is None or end.wall_s <= start.wall_s:
            return None
        others_s = (end.all_s - start.all_s) - (end.own_s - start.own_s) - _TICKS_UNSURE * end.tick_s
        return min(1.0, max(0.0, others_s / (end.wall_s - start.wall_s) / end.cores))


def cpu_time() -> CpuTime | None:
    """CPU times since the machine was started (Linux; None elsewhere).

    "This program" is this process and the processes that it started, such as those that load its data.
    """
    try:
        tick_s = 1 / os.sysconf("SC_CLK_TCK")
        cores = usable_cores()
        all_s = _busy_ticks(Path("/proc/stat").read_text(), cores) * tick_s
        own_s = time.process_time() + _family_ticks(os.getpid()) * tick_s
    except (OSError, ValueError, AttributeError):
        return None
    return CpuTime(wall_s=time.perf_counter(), own_s=own_s, all_s=all_s, cores=len(cores), tick_s=tick_s)


def _busy_ticks(stat: str, cores: tuple[int, ...]) -> int:
    """Ticks in which the cores were not idle, those taken by other virtual machines included."""
    wanted, busy = {f"cpu{core}" for core in cores}, 0
    for line in stat.splitlines():
        name, *fields = line.split()
        if name in wanted:
            user, nice, system, _idle, _iowait, irq, softirq, steal = (int(field) for field in fields[:8])
            busy += user + nice + system + irq + softirq + steal
            wanted.remove(name)
    if wanted:
        raise ValueError("the system does not count every core's time")
    return busy


def _family_ticks(root: int) -> int:
    """Ticks that the descendants of a process took: those that still run, and those that ended and were waited for."""
    times = os.times()
    ended_s = times.children_user + times.children_system
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            # the name, in brackets, may contain blanks
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        number = int(folder.name)
        parents[number], ticks[number] = int(fields[1]), sum(map(int, fields[11:15]))
    family = {root}
    children: dict[int, list[int]] = {}
    for number, parent in parents.items():
        children.setdefault(parent, []).append(number)
    found = [root]
    while found:
        new = [number for number in children.get(found.pop(), ()) if number not in family]
        family.update(new)
        found += new
    return sum(ticks[number] for number in family - {root}) + round(ended_s * os.sysconf("SC_CLK_TCK"))
