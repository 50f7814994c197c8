"""Touched: which storages the calls of a step read or write, or by which calls storages are, in arrays: a step may have
ten million calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from rooflight.records.session import Flags, Int64

_BLOCK: Final = 1 << 16


def numbers(values: Iterable[int] | Int64) -> Int64:
    """These as an array."""
    return values if isinstance(values, np.ndarray) else np.fromiter(values, dtype=np.int64)


class Touched(Sequence[list[int]]):
    """What each of some rows (calls, storages) touches: ``ids`` from ``begins`` to ``ends`` [rows], in order."""

    def __init__(self, begins: Int64, ends: Int64, ids: Any) -> None:
        self._begins, self._ends, self._ids = begins, ends, ids

    def __len__(self) -> int:
        return len(self._begins)

    def __getitem__(self, row: Any) -> Any:
        return self._ids[self._begins[row] : self._ends[row]].tolist()

    def __iter__(self) -> Iterator[list[int]]:
        for start in range(0, len(self), _BLOCK):
            begins, ends = self._begins[start : start + _BLOCK], self._ends[start : start + _BLOCK]
            first = int(begins[0])
            flat = self._ids[first : int(ends[-1])].tolist()
            for begin, end in zip((begins - first).tolist(), (ends - first).tolist(), strict=True):
                yield flat[begin:end]

    def of(self, rows: Int64) -> Int64:
        """What some rows touch, each once, in order."""
        found = np.zeros(int(self._ids.max(initial=-1)) + 1, dtype=np.bool_)
        found[self._ids[self._places(rows)[0]]] = True
        return np.flatnonzero(found)

    def by(self, touched: Iterable[int] | Int64) -> Flags:
        """Which rows touch any of these."""
        wanted = np.zeros(int(self._ids.max(initial=-1)) + 1, dtype=np.bool_)
        these = numbers(touched)
        wanted[these[these < len(wanted)]] = True
        before = np.concatenate([[0], np.cumsum(wanted[self._ids])])
        return np.asarray(before[self._ends] > before[self._begins], dtype=np.bool_)

    def inverse(self, count: int) -> Touched:
        """By each of ``count`` that can be touched the rows that do, in order."""
        places, rows = self._places(np.arange(len(self)))
        ids = self._ids[places]
        ends = np.cumsum(np.bincount(ids, minlength=count))
        return Touched(np.concatenate([[0], ends[:-1]]), ends, rows[np.argsort(ids, kind="stable")])

    def _places(self, rows: Int64) -> tuple[Int64, Int64]:
        """Places among all ids of those of some rows, and the row of each."""
        begins, lengths = self._begins[rows], self._ends[rows] - self._begins[rows]
        before = np.cumsum(lengths) - lengths
        owner = np.repeat(rows, lengths)
        return np.arange(len(owner)) + np.repeat(begins - before, lengths), owner
