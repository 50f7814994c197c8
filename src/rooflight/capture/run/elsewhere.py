"""What a script that runs on a GPU that is not there needs to know: the words that start the process it runs in."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass

from rooflight.devices.spec import DeviceSpec

_OLDEST = (7, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A script, and the devices that it is to see: ``gpus`` on each of ``nodes`` nodes, of which ``rank`` is recorded
    after ``skip`` steps. ``name``, ``capability``, ``memory`` (bytes), ``units`` and ``l2`` (bytes) are the device's
    own; ``saved`` is where the session goes, and a ``loud`` process says on standard error how far it is.
    """

    target: str
    arguments: tuple[str, ...]
    module: bool
    devices: tuple[str, ...]
    name: str
    capability: tuple[int, int]
    memory: int
    units: int
    l2: int
    gpus: int
    nodes: int
    rank: int
    skip: int
    only: str
    named: str
    saved: str
    loud: bool

    def command(self) -> list[str]:
        """The words that start the process."""
        return [sys.executable, "-P", "-m", "rooflight.virtual.child", json.dumps(asdict(self))]


def seen_of(device: DeviceSpec) -> dict[str, object]:
    """What a script sees of a device: its name, capability, memory, units and L2, as ``Wanted`` takes them.

    Raises ValueError for a device that is no GPU, and for one whose memory is not known.
    """
    if device.kind != "cuda":
        raise ValueError(f"--on {device.name}: a script sees no GPU there, which is no CUDA device")
    memory = next((level.capacity_bytes for level in reversed(device.memory)), None)
    if not memory:
        raise ValueError(f"--on {device.name}: its memory is not known")
    l2 = next((level.capacity_bytes for level in device.memory if level.name == "L2"), None)
    numbers = tuple(int(part) for part in device.compute_capability.split(".") if part.isdigit())
    return {
        "name": device.match[0] if device.match else device.name,
        "capability": numbers if len(numbers) == len(_OLDEST) else _OLDEST,
        "memory": memory,
        "units": device.unit_count or 1,
        "l2": l2 or 0,
    }
