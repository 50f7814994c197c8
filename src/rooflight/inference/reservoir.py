"""Reservoir: a uniform random choice of rows of numbers in a fixed amount of memory (Vitter's algorithm R)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from random import Random
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

MOST_SAMPLES: Final = 1 << 16


class Reservoir:
    """Keeps all rows as long as there are at most ``most``, then a random choice of so many, with a fixed seed.

    Numbers are whole and below 2**53, but in the column ``real``, where NaN is not known.
    """

    def __init__(self, columns: Sequence[str], most: int = MOST_SAMPLES, *, real: str = "") -> None:
        self.names = tuple(columns)
        self._most, self._real = most, real
        self._random = Random(0).random
        self._rows = array("d")  # one after the other
        self.seen = 0

    def add(self, row: tuple[float, ...]) -> None:
        """One more row: kept, or not, or in the place of another."""
        self.seen += 1
        if self.seen <= self._most:
            self._rows.extend(row)
            return
        place = int(self._random() * self.seen) * len(row)
        if place < len(self._rows):
            self._rows[place : place + len(row)] = array("d", row)

    @property
    def kept(self) -> int:
        """How many rows are kept."""
        return len(self._rows) // len(self.names)

    @property
    def exact(self) -> bool:
        """Whether every row is kept."""
        return self.kept == self.seen

    def columns(self) -> dict[str, NDArray[Any]]:
        """The rows kept, by column: whole numbers, but for the real one."""
        rows = np.array(self._rows).reshape(-1, len(self.names)).T
        return {
            name: column if name == self._real else column.astype(np.int64)
            for name, column in zip(self.names, rows, strict=True)
        }

    def csv(self, **more: Sequence[str]) -> str:
        """The rows kept as text, with more columns after theirs."""
        columns = {name: column.tolist() for name, column in self.columns().items()} | more
        lines = (",".join(map(str, row)) for row in zip(*columns.values(), strict=True))
        return "\n".join((",".join(columns), *lines, ""))
