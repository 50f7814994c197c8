"""What-if roofs: a device whose matrix products use fewer bits than a program asks for, or whose clock is locked."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from rooflight.hardware.devices.spec import DeviceSpec, Roofs, clock_text
from rooflight.records.dtypes import FLOAT_BITS, SHORT_PRECISIONS, dtype_name, precision_of

_LEAST_CLOCK_HZ: Final = 1e6  # below, somebody left the unit out
_MOST_CLOCK_HZ: Final = 1e11
_UNITS: Final = {"ghz": 1e9, "mhz": 1e6, "khz": 1e3, "hz": 1.0, "": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Roofs that a user supposes: ``precision`` is the name of a float format, ``clock_hz`` a locked clock; None leaves
    the device's own. Raises ValueError for what is no precision of fewer bits than float64, and no clock.
    """

    precision: str | None = None
    clock_hz: float | None = None

    def __post_init__(self) -> None:
        if self.precision is not None:
            object.__setattr__(self, "precision", _precision(self.precision))
        if self.clock_hz is not None:
            _check_clock(self.clock_hz, f"a clock of {self.clock_hz!r}")

    def of(self, device: DeviceSpec) -> DeviceSpec:
        """The device with these roofs, under a name that has them: ``"A100-SXM4-80GB at 1.1 GHz"``.

        *Precision*: matrix work in more bits is bounded at its peak, unless its own is higher; vector work, and the
        bytes that operands have in memory, are as before. *Clock*: matrix and vector peaks of the datasheet scale with
        it. Memory and links have clocks of their own, and so have caches: their bandwidths stay, since a cache need not
        slow down with the arithmetic. A calibration, made at a clock that nobody knows, is left out.

        Raises ValueError for a precision without a peak on the device, for a clock above its highest, for a device of
        which no clock, or no datasheet, is known, and for one that has such roofs already.
        """
        clocked = device if self.clock_hz is None else _at_clock(device, self.clock_hz)
        return clocked if self.precision is None else _at_precision(clocked, self.precision)


AS_IT_IS: Final = WhatIf()
"""The device's own roofs."""


def parse_clock(text: str) -> float:
    """Hertz of ``"1.5GHz"``, ``"1410 MHz"`` or ``"1.5e9"``. Raises ValueError for anything else."""
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:e\+?[0-9]{1,2})?)\s*([a-z]*)\s*", text.lower(), re.ASCII)
    if not found or found[2] not in _UNITS:
        raise ValueError(f'"{text}" is no clock: give one such as 1.5GHz, 1410MHz or 1.5e9')
    clock_hz = float(found[1]) * _UNITS[found[2]]
    _check_clock(clock_hz, f'a clock of "{text}"')
    return clock_hz


def _check_clock(clock_hz: float, what: str) -> None:
    if isinstance(clock_hz, bool) or not isinstance(clock_hz, int | float):
        raise TypeError(f"{what}: give hertz, as a number")
    if not _LEAST_CLOCK_HZ <= clock_hz <= _MOST_CLOCK_HZ:
        raise ValueError(f"{what} is no clock of a device: give one such as 1.5GHz, 1410MHz or 1.5e9")


def _precision(text: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f'a precision is a name such as "bf16", not {type(text).__name__}')
    known = ", ".join(short for name, short in SHORT_PRECISIONS.items() if FLOAT_BITS.get(name, 64) < 64)
    try:
        precision = precision_of(dtype_name(text))
    except ValueError:
        precision = None
    if precision is None or FLOAT_BITS.get(precision, 64) >= 64:
        raise ValueError(f'"{text}" is no precision for matrix products to use instead: give one of {known}')
    return precision


def _at_precision(device: DeviceSpec, precision: str) -> DeviceSpec:
    short = SHORT_PRECISIONS[precision]
    if device.what_if_precision is not None:
        raise ValueError(f"{device.name} has a precision already: begin with the device itself")
    refuse_without_peak(device, precision)
    return replace(device, name=f"{device.name} in {short}", part=device.part_name, what_if_precision=precision)


def refuse_without_peak(device: DeviceSpec, precision: str) -> None:
    """Raises ValueError for a precision, by its full name, of which a device lists no matrix peak."""
    if device.matrix_peak(precision) is None:
        listed = [name for each, name in SHORT_PRECISIONS.items() if device.matrix_peak(each) is not None]
        has = f"it has one for {', '.join(listed)}" if listed else "it has none at all"
        raise ValueError(f"{device.name} has no known {SHORT_PRECISIONS[precision]} matrix peak: {has}")


def without_effect(precision: str) -> str:
    """A line for reports of work that a what-if precision, by its full name, leaves as it is."""
    option = f"--precision {SHORT_PRECISIONS[precision]}"
    return f"nothing is bounded differently ({option}): no product has more bits and a lower peak"


def without_precision(device: DeviceSpec) -> DeviceSpec:
    """The device with its own precisions; a locked clock stays."""
    if device.what_if_precision is None:
        return device
    name = device.name.removesuffix(f" in {SHORT_PRECISIONS[device.what_if_precision]}")
    return replace(device, name=name, part="" if name == device.part else device.part, what_if_precision=None)


def _at_clock(device: DeviceSpec, clock_hz: float) -> DeviceSpec:
    if device.what_if_clock_hz is not None:
        raise ValueError(f"{device.name} has a locked clock already: begin with the device itself")
    if device.datasheet is None:
        raise ValueError(f"{device.name} has no datasheet: its roofs were measured at a clock that is not known")
    if device.boost_clock_mhz is None:
        raise ValueError(
            f"{device.name} has no clock listed, so its peaks cannot be scaled to {clock_text(clock_hz)}: add "
            "boost_clock_mhz to a TOML of it"
        )
    highest_hz = device.boost_clock_mhz * 1e6
    if clock_hz > highest_hz:
        raise ValueError(
            f"{clock_text(clock_hz)} is above the highest clock of {device.name}, {clock_text(highest_hz)}"
        )
    matrix_hz = (device.matrix_peak_clock_mhz or device.boost_clock_mhz) * 1e6
    sheet = device.datasheet
    scaled = Roofs(
        source=sheet.source,
        matrix_flops_per_s={name: peak * clock_hz / matrix_hz for name, peak in sheet.matrix_flops_per_s.items()},
        vector_flops_per_s={name: peak * clock_hz / highest_hz for name, peak in sheet.vector_flops_per_s.items()},
        memory=sheet.memory,
    )
    return replace(
        device,
        name=f"{device.name} at {clock_text(clock_hz)}",
        part=device.part_name,
        datasheet=scaled,
        calibrated=None,
        boost_clock_mhz=clock_hz / 1e6,
        matrix_peak_clock_mhz=None,
        what_if_clock_hz=clock_hz,
    )
