"""Intervals of time, and how much of others they cover."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rooflight.records.session import Float64


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals that do not touch each other, in order: where each starts and how long it lasts, in seconds."""

    starts: Float64
    lengths: Float64

    @classmethod
    def union(cls, starts: Float64, lengths: Float64) -> Intervals:
        """What at least one of the given intervals covers; those of unknown start or length cover nothing."""
        known = np.isfinite(starts) & np.isfinite(lengths) & (lengths > 0)
        starts, lengths = starts[known], lengths[known]
        if not len(starts):
            return cls(starts, lengths)
        order = np.argsort(starts, kind="stable")
        starts = starts[order]
        reached = np.maximum.accumulate(starts + lengths[order])
        begins = np.concatenate([[True], starts[1:] > reached[:-1]])
        ends = np.concatenate([begins[1:], [True]])
        return cls(starts[begins], reached[ends] - starts[begins])

    def overlap(self, starts: Float64, lengths: Float64) -> Float64:
        """Seconds of each given interval that these cover; NaN for one of unknown start or length."""
        covered = self._covered_before(starts + lengths) - self._covered_before(starts)
        return np.asarray(np.clip(covered, 0.0, lengths), dtype=np.float64)

    def _covered_before(self, moments: Float64) -> Float64:
        """Seconds covered up to each moment."""
        if not len(self.starts):
            return np.where(np.isfinite(moments), 0.0, np.nan)
        place = np.searchsorted(self.starts, moments, side="right") - 1
        inside = np.maximum(place, 0)
        before = np.concatenate([[0.0], np.cumsum(self.lengths)])[inside]
        into = np.minimum(moments - self.starts[inside], self.lengths[inside])
        return np.where(np.isnan(moments), np.nan, np.where(place < 0, 0.0, before + into))
