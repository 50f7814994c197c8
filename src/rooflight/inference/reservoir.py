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
        self._columns = tuple(array("q") for _ in columns)
        self.seen = 0

    def add(self, row: tuple[int, ...]) -> int | None:
        """One more row. Returns the place that it is kept in, None where it is not kept."""
        self.seen += 1
        if self.seen <= self._most:
            for column, value in zip(self._columns, row, strict=True):
                column.append(value)
            return self.seen - 1
        place = int(self._random() * self.seen)
        if place >= self._most:
            return None
        for column, value in zip(self._columns, row, strict=True):
            column[place] = value
        return place

    @property
    def kept(self) -> int:
        """How many rows are kept."""
        return len(self._columns[0])

    @property
    def exact(self) -> bool:
        """Whether every row is kept."""
        return self.kept == self.seen

    def columns(self) -> dict[str, NDArray[np.int64]]:
        """The rows kept, by column."""
        return {name: np.array(column, dtype=np.int64) for name, column in zip(self.names, self._columns, strict=True)}
