"""Why rows of measured tables that nothing speaks against are faster than their bound: each has a cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from enum import StrEnum
from typing import Final

import numpy as np

from rooflight.prediction.beaten import least_slowdown
from rooflight.prediction.facts import FACTS, FactRows, WorkKind, kind_of
from rooflight.prediction.lint import Place, is_flagged
from rooflight.prediction.measured_table import Floats, Mask, MeasuredTable
from rooflight.prediction.row_bounds import RowBounds
from rooflight.records.quantity import count_of

_STEPS: Final = tuple(10.0**-digits for digits in range(3, 10))
"""Seconds to which a source may have rounded its times."""
_WHOLE: Final = 1e-4  # of a step: how far a rounded time is from a whole number of steps


class Cause(StrEnum):
    """Why a time is less than the bound. The first that applies counts."""

    ROUNDING = "rounding"
    """The time is rounded, and the bound is no more than half a step above it."""
    ALGORITHM = "FFT or Winograd"
    """A convolution took less than its FLOPs do."""
    CACHE = "cache-resident"
    """Bytes that the last cache can have held, or can still hold, are all that the bound has beyond the time."""
    CLOCK = "clock or 5 %"
    """Within what the device may clock above its peaks' clock and lint's allowance of 5 %."""


def causes_of(table: MeasuredTable, bounds: RowBounds, flagged: Set[Place]) -> Mapping[Cause, int]:
    """How many times of a table are faster than the bound, by cause; without flagged times, and collectives."""
    found = Counter[Cause]()
    step_s = step_of(table.seconds)
    kept = np.isfinite(table.seconds) & ~is_flagged(table, flagged)
    for number, facts in enumerate(bounds.facts):
        for each in facts:
            if kind_of(each.key) is not WorkKind.NETWORK:
                rows = kept[each.rows, number]
                found += _causes(each, rows, table.seconds[each.rows, number], step_s, table)
    return found


def said_of(causes: Mapping[Cause, int]) -> str:
    """How many times beat the bound, by cause, the most frequent first; nothing where none does."""
    total = sum(causes.values())
    if not total:
        return ""
    each = ", ".join(f"{count:,} {cause}" for cause, count in Counter(causes).most_common())
    return f"{count_of(total, 'time is', 'times are')} faster than the bound without being flagged: {each}."


def _causes(facts: FactRows, kept: Mask, time_s: Floats, step_s: float, table: MeasuredTable) -> Counter[Cause]:
    fact = dict(zip(FACTS[kind_of(facts.key)], facts.values.T, strict=True))
    bound_s = fact["bound_s"]
    beats = kept & (time_s < bound_s)
    rounded = time_s + step_s / 2 >= bound_s
    counts_less = (kind_of(facts.key) is WorkKind.CONVOLUTION) & (time_s < fact["compute_s"])
    from_cache = (least_slowdown(facts.key, facts.values, table.device) < 0) & (time_s >= fact["compute_s"])
    left = beats
    found = Counter[Cause]()
    for cause, holds in ((Cause.ROUNDING, rounded), (Cause.ALGORITHM, counts_less), (Cause.CACHE, from_cache)):
        found[cause] = int((left & holds).sum())
        left = left & ~holds
    found[Cause.CLOCK] = int(left.sum())
    return +found


def step_of(seconds: Floats) -> float:
    """The largest power of ten of seconds, from a millisecond to a nanosecond, of which all times are multiples; 0 of
    times that are not rounded, or too few to see it.
    """
    known = seconds[np.isfinite(seconds)]
    if len(known) < 2:
        return 0.0
    for step_s in _STEPS:
        steps = known / step_s
        if (np.abs(steps - np.round(steps)) < _WHOLE).all():
            return step_s
    return 0.0
