"""Numbers with units, in the form people read: 1.53 TFLOP, 302 ms, 45.2 GB."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

_LARGE = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_SMALL = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
_SIZES = {"TFLOP/s": 1e12, "TOP/s": 1e12, "GB/s": 1e9, "µs": 1e-6, "GiB": 2**30, "MiB": 2**20}


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value in an SI unit: ``"FLOP"``, ``"FLOP/s"``, ``"B"``, ``"B/s"``, ``"s"``, or ``"%"`` for a share of 1.

    ``shown_in`` fixes the unit that people read (``"TFLOP/s"``, ``"GiB"``), and shows all digits of a datasheet.
    """

    value: float
    unit: str
    shown_in: str = ""

    def __str__(self) -> str:
        if not isfinite(self.value):
            return "unknown"
        if self.shown_in:
            return f"{in_unit(self.value, self.shown_in)} {self.shown_in}"
        if self.unit == "%":
            return percent(self.value)
        if self.value == 0:
            return f"0 {self.unit}"
        size = abs(self.value)
        table = _SMALL if self.unit == "s" else _LARGE
        factor, prefix = next(((f, p) for f, p in table if size >= f * 0.9995), table[-1])
        if self.unit == "s" and size < factor * 0.9995:  # no clock and no bound is that fine
            return f"<1 {prefix}s"
        return f"{three_digits(self.value / factor)} {prefix}{self.unit}"


def in_unit(value: float, unit: str, digits: int = 7) -> str:
    """An SI value in a unit that people read, without the unit: 80 GiB of bytes as 80. No zeros are added."""
    return f"{value / _SIZES.get(unit, 1):.{digits}g}"


def three_digits(value: float) -> str:
    """Three significant digits without exponent: 1.53, 15.3, 153, 1530."""
    size = abs(value)
    digits = 0 if size >= 99.95 else 1 if size >= 9.995 else 2
    return f"{value:.{digits}f}"


def count_of(number: int, one: str, many: str = "") -> str:
    """A number of things: ``"1 call"``, ``"2,000 calls"``; ``many`` where an s is not enough (``"calls have"``)."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def percent(share: float) -> str:
    """A share of 1 as a percentage, never rounded up to 100 % nor down to 0."""
    if -0.0005 < share < 0:
        return ">-0.1%"
    if share in (0, 1):
        return f"{abs(share):.0%}"
    if 0.9995 <= share < 1:
        return ">99.9%"
    return "<0.1%" if 0 < share < 0.0005 else f"{share * 100:.1f}%"
