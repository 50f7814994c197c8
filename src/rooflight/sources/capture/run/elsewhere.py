"""What a script that runs on a GPU that is not there needs to know: the words that start the process it runs in."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from rooflight.hardware.devices.spec import DeviceSpec

NOT_HERE: Final = "not here"
"""The answer where a script imports what it takes a GPU for."""

_OLDEST: Final = (7, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A script or module with its arguments; ``skip``, ``only`` and ``named`` as in ``Watched``."""

    target: str
    arguments: tuple[str, ...]
    module: bool
    skip: int = 2
    only: str = ""
    named: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a script can ask of a device. ``memory`` and ``l2`` are bytes, ``units`` multiprocessors."""

    name: str
    capability: tuple[int, int]
    memory: int
    units: int
    l2: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A program, and the devices that it is to see: ``gpus`` on each of ``nodes`` nodes, of which ``rank`` is recorded.
    ``saved`` is where the session goes. A ``loud`` process says on standard error how far it is. With ``safe_path``, as
    by ``python -P``, modules beside the script are not found.
    """

    program: Program
    devices: tuple[str, ...]
    seen: Seen
    gpus: int
    nodes: int
    rank: int
    saved: str
    loud: bool
    safe_path: bool = sys.flags.safe_path

    @property
    def faults(self) -> Path:
        """Where the process says at which line it dies."""
        return Path(f"{self.saved}.faults")

    def command(self) -> list[str]:
        """The words that start the process."""
        return [sys.executable, "-P", "-m", "rooflight.sources.virtual.child", msgspec.json.encode(self).decode()]


def seen_of(device: DeviceSpec) -> Seen:
    """What a script sees of a device.

    Raises ValueError for a device that is no GPU, and for one whose memory is not known.
    """
    if device.kind != "cuda":
        raise ValueError(f"--on {device.name}: a script sees no GPU there: name one that `rooflight devices` lists")
    memory = next((level.capacity_bytes for level in reversed(device.memory)), None)
    if not memory:
        raise ValueError(f"--on {device.name}: its memory is not known")
    l2 = next((level.capacity_bytes for level in device.memory if level.name == "L2"), None)
    numbers = tuple(int(part) for part in device.compute_capability.split(".") if part.isdigit())
    major, minor = numbers if len(numbers) == len(_OLDEST) else _OLDEST
    name = device.match[0] if device.match else device.name
    return Seen(name=name, capability=(major, minor), memory=memory, units=device.unit_count or 1, l2=l2 or 0)
