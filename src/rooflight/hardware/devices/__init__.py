"""Knows what hardware can do: one TOML for each device, every number with its source."""

from .catalog import find_by_torch_name, names
from .finding import all_devices, get
from .spec import DeviceSpec, Link, MemoryLevel, Roofs

__all__ = ["DeviceSpec", "Link", "MemoryLevel", "Roofs", "all_devices", "find_by_torch_name", "get", "names"]
