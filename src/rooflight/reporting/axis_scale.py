"""Scales of a picture's axes: which values the ticks stand at, and where a value is drawn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Final

_MOST_TICKS: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisScale:
    """Maps values from ``low`` to ``high`` to pixels from ``start`` to ``end`` (which may be the smaller one)."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """The pixel of a value."""
        low, high = (log10(self.low), log10(self.high)) if self.logarithmic else (self.low, self.high)
        place = log10(value) if self.logarithmic else value
        return self.start + (place - low) / (high - low) * (self.end - self.start)

    @property
    def ticks(self) -> tuple[float, ...]:
        """Round values within the scale: powers of ten, or multiples of 1, 2 or 5 times one."""
        if self.logarithmic:
            first, last = ceil(log10(self.low) - 1e-9), floor(log10(self.high) + 1e-9)
            step = max(1, ceil((last - first + 1) / _MOST_TICKS))
            return tuple(10.0**power for power in range(first, last + 1, step))
        unit = 10.0 ** floor(log10((self.high - self.low) / _MOST_TICKS))
        step_size = next(
            factor * unit for factor in (1, 2, 5, 10) if (self.high - self.low) / (factor * unit) <= _MOST_TICKS
        )
        return tuple(
            number * step_size for number in range(ceil(self.low / step_size), floor(self.high / step_size) + 1)
        )


def scale_of(values: Iterable[float], start: float, end: float, *, logarithmic: bool = False) -> AxisScale:
    """The scale that shows all values: of decades, or from 0. Any scale will do for no values."""
    shown = [value for value in values if not logarithmic or value > 0]
    if logarithmic:
        low, high = min(shown, default=1.0), max(shown, default=10.0)
        low, high = (low, high) if low < high else (low / 10, high * 10)
    else:
        low, high = min(0.0, *shown, 0.0), max(0.0, *shown, 0.0)
        high = high if low < high else low + 1.0
    return AxisScale(low=low, high=high, start=start, end=end, logarithmic=logarithmic)
