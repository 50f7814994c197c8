"""The one way from a name to a device: its datasheet, and the roofs of a calibration where one of it is kept."""

from __future__ import annotations

from rooflight.hardware.devices import catalog
from rooflight.hardware.devices.catalog import find_by_torch_name, same_name
from rooflight.hardware.devices.spec import DeviceSpec

HERE = ("cpu", "cuda")
"""Not names of devices: the CPU and the GPU at hand, which ``rooflight.front.device`` finds."""


def get(name: str) -> DeviceSpec:
    """The device called ``name``: a catalog name, what its driver prints, a name's beginning, a path to a TOML, or the
    name of a device outside the catalog that was calibrated (a CPU).

    It has the roofs of its newest calibration among those kept on this machine, wherever that was measured (a CPU: of
    its newest on the most threads, so that no run on fewer beats its bound), and its datasheet's alone where none is
    kept: ``DeviceSpec.roofs_used`` says which. Capitals, blanks and hyphens do not
    matter. Raises ValueError where no device has the name or where several begin with it (``"h100"``), for "cpu" and
    "cuda"; TypeError for what is no text. A calibration file that is broken is left out, with a warning.
    """
    if not isinstance(name, str):
        raise TypeError(f'get takes the name of a device, such as "H100-SXM5-80GB", not {type(name).__name__}')
    if name.lower() in HERE:
        kind = name.lower()
        raise ValueError(f'"{name}" means this machine: pass rooflight.current_device("{kind}"), or name a device')
    from rooflight.hardware.devices.calibrations import device_of, saved  # msgspec takes its time

    calibrated = saved()
    called = [device_of(calibration) for calibration in calibrated if same_name(calibration.device_name, name)]
    outside = [device for device in called if device.datasheet is None]
    if outside:
        return max(outside, key=lambda device: device.threads or 0)  # the first of several: the newest
    found = catalog.datasheet(name)
    for calibration in calibrated:
        if calibration.kind == found.kind and _is_of(found, calibration.device_name):
            return found.with_calibration(calibration.roofs)
    return found


def all_devices() -> tuple[DeviceSpec, ...]:
    """Every device of the catalog, sorted by name, each as ``get`` finds it."""
    return tuple(map(get, catalog.names()))


def _is_of(device: DeviceSpec, printed: str) -> bool:
    """Whether a driver prints ``printed`` for ``device``; a file that the user wrote lists those names itself."""
    if any(same_name(printed, name) for name in (device.name, *device.match)):
        return True
    known = find_by_torch_name(printed)
    return known is not None and known.name == device.name
