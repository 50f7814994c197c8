"""Devices by the names that files bear."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from rooflight.devices import calibrations, find_by_torch_name, get
from rooflight.devices.spec import DeviceSpec


def device_called(label: str, where: Path | str) -> DeviceSpec:
    """The device of a name as files bear it, without blanks: from the catalog, or a calibrated one of this machine.

    Raises ValueError, naming ``where`` it stands, for one that nobody knows.
    """
    known = find_by_torch_name(label)
    if known is not None:
        return known
    for calibration in calibrations.saved():
        if _squeezed(calibration.device_name) == _squeezed(label):
            return calibrations.device_of(calibration)
    try:
        return get(label)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def device_of_folder(path: Path, devices: Mapping[str, str], what: str) -> DeviceSpec:
    """The device of the nearest folder that ``devices`` names. Raises ValueError, ``what`` is not told, for none."""
    folder = next((name for name in reversed(path.absolute().parent.parts) if name in devices), None)
    if folder is None:
        raise ValueError(
            f"{path} does not tell its {what}: keep it in the folder that Vidur has it in, one of {', '.join(devices)}"
        )
    return get(devices[folder])


def _squeezed(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", name.lower())
