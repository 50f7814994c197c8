"""Distinct: which numbers there are among many, by counting where they are small: sorting ten million takes seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from rooflight.records.session import Int64

_SMALL: Final = 1 << 22


def distinct(numbers: Int64) -> tuple[Int64, Int64, Int64]:
    """Each of some numbers, none negative, once and in order, the place of each among these, and how often it is."""
    if int(numbers.max(initial=0)) >= max(_SMALL, len(numbers)):
        found, place, counts = np.unique(numbers, return_inverse=True, return_counts=True)
        return found, place, counts
    counts = np.bincount(numbers, minlength=1)
    found = np.flatnonzero(counts)
    place = np.zeros(len(counts), dtype=np.int64)
    place[found] = np.arange(len(found))
    return found, place[numbers], counts[found]


def distinct_rows(columns: Sequence[Any]) -> tuple[Int64, Int64, Int64]:
    """The same of rows of numbers in columns, none negative: the rows [rows, columns]."""
    place = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        found, place, counts = distinct(place * (int(column.max(initial=0)) + 1) + column)
    first = np.empty(len(found), dtype=np.int64)
    first[place[::-1]] = np.arange(len(place))[::-1]
    return np.stack([column[first] for column in columns], axis=1), place, counts
