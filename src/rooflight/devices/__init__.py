"""Knows what hardware can do: one TOML for each device, every number with its source."""

from rooflight.devices.catalog import find_by_torch_name, names
from rooflight.devices.finding import all_devices, get
from rooflight.devices.spec import DeviceSpec, Link, MemoryLevel, Roofs

__all__ = ["DeviceSpec", "Link", "MemoryLevel", "Roofs", "all_devices", "find_by_torch_name", "get", "names"]
