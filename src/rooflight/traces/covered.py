"""Covered: the moments that intervals cover, each counted once, in whole nanoseconds of a trace's clock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rooflight.records.session import Flags, Int64


@dataclass(frozen=True, slots=True)
class Covered:
    """Intervals that do not touch each other, in order."""

    start: Int64
    stop: Int64

    @classmethod
    def by(cls, start: Int64, stop: Int64) -> Covered:
        """What at least one of the given intervals covers; those that end before they begin cover nothing."""
        some = stop > start
        start, stop = start[some], stop[some]
        order = np.argsort(start, kind="stable")
        start, reached = start[order], np.maximum.accumulate(stop[order]) if len(order) else stop
        first = np.ones(len(start), dtype=np.bool_)
        first[1:] = start[1:] > reached[:-1]
        last = np.roll(first, -1)
        return cls(start[first], reached[last])

    @property
    def length(self) -> int:
        """Nanoseconds in all."""
        return int((self.stop - self.start).sum())

    def within(self, begin: Int64, end: Int64) -> Int64:
        """Nanoseconds covered between each ``begin`` and its ``end``, which is not before it."""
        return np.asarray(self._before(end) - self._before(begin), dtype=np.int64)

    def at(self, moment: Int64) -> Flags:
        """Whether each moment is covered: an interval has its begin, not its end."""
        place = np.searchsorted(self.start, moment, side="right") - 1
        if not len(self.start):
            return np.zeros(len(moment), dtype=np.bool_)
        return np.asarray((place >= 0) & (moment < self.stop[np.maximum(place, 0)]), dtype=np.bool_)

    def gaps(self, begin: int, end: int) -> Covered:
        """What is not covered from ``begin`` to ``end``, which enclose all intervals."""
        start, stop = np.append(begin, self.stop), np.append(self.start, end)
        some = stop > start
        return Covered(start[some], stop[some])

    def _before(self, moment: Int64) -> Int64:
        if not len(self.start):
            return np.zeros(len(moment), dtype=np.int64)
        place = np.searchsorted(self.start, moment, side="right")
        whole = np.concatenate([[0], np.cumsum(self.stop - self.start)])
        over = np.where(place > 0, np.maximum(self.stop[place - 1] - moment, 0), 0)
        return np.asarray(whole[place] - over, dtype=np.int64)
