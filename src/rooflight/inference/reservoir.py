"""Reservoir: a uniform random choice of rows of whole numbers in a fixed amount of memory (Vitter's algorithm R)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from random import Random
from typing import Final

import numpy as np
from numpy.typing import NDArray

MOST_SAMPLES: Final = 1 << 16


class Reservoir:
    """Keeps all rows as long as there are at most ``most``, then a random choice of so many, with a fixed seed."""

    def __init__(self, columns: Sequence[str], most: int = MOST_SAMPLES) -> None:
        self.names = tuple(columns)
        self._most = most
        self._random = Random(0).random
        self._rows = array("q")  # one after the other
        self.seen = 0

    def add(self, row: tuple[int, ...]) -> int | None:
        """One more row. Returns the place that it is kept in, None where it is not kept."""
        self.seen += 1
        if self.seen <= self._most:
            self._rows.extend(row)
            return self.seen - 1
        place = int(self._random() * self.seen)
        if place >= self._most:
            return None
        width = len(self.names)
        self._rows[place * width : (place + 1) * width] = array("q", row)
        return place

    @property
    def kept(self) -> int:
        """How many rows are kept."""
        return len(self._rows) // len(self.names)

    @property
    def exact(self) -> bool:
        """Whether every row is kept."""
        return self.kept == self.seen

    def columns(self) -> dict[str, NDArray[np.int64]]:
        """The rows kept, by column."""
        rows = np.array(self._rows, dtype=np.int64).reshape(-1, len(self.names))
        return {name: rows[:, number].copy() for number, name in enumerate(self.names)}
