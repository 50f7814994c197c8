"""Batch: estimates of many pieces of work at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooflight.prediction.facts import Floats, Integers

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Estimates of many pieces of work, each an array [works]: seconds, and whether they were extrapolated."""

    time_s: Floats
    low_s: Floats
    high_s: Floats
    bound_s: Floats
    extrapolated: Mask

    def of(self, rows: Integers | Mask) -> Batch:
        """Those of some works, in this order."""
        return Batch(**{name: values[rows] for name, values in self._columns()})

    def where(self, which: Mask, others: Batch) -> Batch:
        """These where ``which`` [works] is true, elsewhere ``others``."""
        theirs = dict(others._columns())
        return Batch(**{name: np.where(which, values, theirs[name]) for name, values in self._columns()})

    def _columns(self) -> list[tuple[str, Any]]:
        return [(each.name, getattr(self, each.name)) for each in fields(self)]


def scattered(count: int, parts: Iterable[tuple[Integers, Batch]]) -> Batch:
    """Estimates of some of ``count`` pieces of work, in their places among all; NaN and extrapolated elsewhere."""
    numbers = {name: np.full(count, np.nan) for name in ("time_s", "low_s", "high_s", "bound_s")}
    extrapolated = np.ones(count, dtype=bool)
    for rows, batch in parts:
        for name, values in numbers.items():
            values[rows] = getattr(batch, name)
        extrapolated[rows] = batch.extrapolated
    return Batch(**numbers, extrapolated=extrapolated)
