"""The rules by which lint suspects rows: arrays in, arrays out. Reasons for thresholds: docs/reference/tables.md."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rooflight.prediction.read.measured import Floats, Integers, Mask, MeasuredTable

REACH = 2
"""How many rows to each side of a row, along each parameter, are its neighbours."""
APART = log(16)
"""Neighbours further apart give no estimate of a row between: where work begins to outweigh a launch, efficiency takes
a bend, and a straight line over a bend halfway is off by a quarter of its length, here a factor of 2."""
BEYOND, STEPS = log(2), 3.0
"""A line is believed so far beyond its neighbours, since a bend may lie there, and so many times their distance."""
_NONE = -1
_SIDES = [(before, after) for before in range(REACH) for after in range(REACH, 2 * REACH)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Rows along one parameter, all others equal.

    ``near`` [rows, 2 × REACH] are numbers of rows: the next smaller ones, nearest first, then the next larger ones;
    -1 where there is none. ``position`` [rows] is the logarithm of the parameter. ``line`` [rows] numbers the lines.
    """

    parameter: str
    near: Integers
    position: Floats
    line: Integers


def lines_of(table: MeasuredTable) -> tuple[Lines, ...]:
    """The lines along each parameter that has several values. Of rows of one shape, each has the same neighbours."""
    shapes, first, places = np.unique(table.shapes, axis=0, return_index=True, return_inverse=True)
    places = places.reshape(-1)
    found = []
    for column, parameter in enumerate(table.parameters):
        if len(np.unique(shapes[:, column])) > 1:
            near, line = _along(shapes, column)
            rows = np.where(near == _NONE, _NONE, first[near])
            position = np.log1p(table.shapes[:, column])
            found.append(Lines(parameter=parameter, near=rows[places], position=position, line=line[places]))
    return tuple(found)


def expected(lines: tuple[Lines, ...], values: Floats) -> Floats:
    """What its neighbours make of each row's value.

    Along a parameter: the median over the straight lines through one neighbour on each side; through the two of one
    side where the other has none. Over the parameters: the median. nan where there are no neighbours. Neighbours whose
    value is nan are left out.
    """
    return _median(np.stack([_along_one(line, values) for line in lines])) if lines else np.full(len(values), np.nan)


def _along(shapes: Integers, column: int) -> tuple[Integers, Integers]:
    others = np.delete(shapes, column, axis=1)
    _, line = np.unique(others, axis=0, return_inverse=True)
    line = line.reshape(-1)
    order = np.lexsort((shapes[:, column], line))
    near = np.full((len(shapes), 2 * REACH), _NONE, dtype=np.int64)
    for step in range(1, REACH + 1):
        low, high = order[:-step], order[step:]
        same = line[low] == line[high]
        near[high[same], step - 1] = low[same]
        near[low[same], REACH + step - 1] = high[same]
    return near, line


def _along_one(lines: Lines, values: Floats) -> Floats:
    there = np.where(lines.near == _NONE, np.nan, values[lines.near])
    at = np.where(lines.near == _NONE, np.nan, lines.position[lines.near])
    between = _median(np.stack([_through(lines.position, at, there, *pair) for pair in _SIDES]))
    beyond = _median(np.stack([_through(lines.position, at, there, 0, 1), _through(lines.position, at, there, 2, 3)]))
    return np.where(np.isfinite(between), between, beyond)


def _through(position: Floats, at: Floats, there: Floats, one: int, other: int) -> Floats:
    away, apart = position - at[:, one], at[:, other] - at[:, one]
    steps = away / apart
    near = (steps >= 0) & (np.abs(apart) <= APART)
    beside = (steps < 0) & (steps >= -STEPS) & (np.abs(away) <= BEYOND)
    return np.where(near | beside, there[:, one] + steps * (there[:, other] - there[:, one]), np.nan)


def _median(stacked: Floats) -> Floats:
    known = np.isfinite(stacked).sum(axis=0)
    ordered = np.sort(np.where(np.isfinite(stacked), stacked, np.inf), axis=0)
    low = np.take_along_axis(ordered, np.maximum(0, (known - 1) // 2)[None], axis=0)[0]
    high = np.take_along_axis(ordered, np.minimum(len(stacked) - 1, known // 2)[None], axis=0)[0]
    middle: NDArray[np.float64] = np.where(known > 0, low, np.nan)
    return np.where(known > 0, (middle + np.where(known > 0, high, np.nan)) / 2, np.nan)


SLACK: Final = 1.05
"""A row is faster than light where the floor is more than this times its time."""
OUTLIER: Final = 2.0
"""A row is an outlier where it is this many times off its neighbours' estimate, and
OUTLIER_SIGMAS standard deviations of its table off."""
OUTLIER_SIGMAS: Final = 8.0
SLOW: Final = 10.0
"""A row is too slow at this many times what rows of about its work suggest."""
BESIDE: Final = 25
"""Rows with less work, and as many with more, from which a row's time follows."""
STILL, GROWN = 1.25, 4.0
"""A line is constant where times differ by less than STILL while the work differs by more than GROWN."""
BACKWARD: Final = 4.0
"""Backward is too fast where it is this many times as efficient as forward."""
SHORTER: Final = 1.5
"""A neighbour with less work contradicts a row where it took this many times as long."""
ALONE: Final = 3.0
"""The same of one neighbour without others that confirm it."""
SLOW_MODE, MODE_SHARE = 2.0, 0.02
"""A second mode: rows that take SLOW_MODE times as long as the fast ones of their size, and are MODE_SHARE of all."""
AROUND: Final = 51
"""Rows of about the same size among which the fast ones are found."""
FAST_SHARE: Final = 0.2
COPIED, COPIED_SHARE = 0.01, 0.1
"""Two columns look copied where COPIED_SHARE of their rows agree within COPIED."""
_SIGMA: Final = 1.4826  # median absolute deviation to standard deviation, of a normal distribution
_FEW: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """``rows`` are suspect; ``factor`` is how far off each is, ``other`` what it is off from: seconds, or for lines
    the number of the line's parameter.
    """

    rows: Mask
    factor: Floats
    other: Floats


def faster_than_light(time_s: Floats, floor_s: Floats) -> Suspicion:
    """Rows that took less than the floor."""
    return Suspicion(rows=floor_s > SLACK * time_s, factor=floor_s / time_s, other=floor_s)


def too_slow(time_s: Floats, bound_s: Floats, floor_s: Floats, group: Integers) -> Suspicion:
    """Rows that took many times what their work suggests: no more than the rows with more work took, nor more than
    at the efficiency of those with less. Rows below their floor count as if they took that long. Only rows of one
    group are compared.
    """
    most = np.full(len(time_s), np.nan)
    for number in range(group.max(initial=-1) + 1):
        here = np.flatnonzero((group == number) & (bound_s > 0))
        order = here[np.argsort(bound_s[here], kind="stable")]
        if len(order) < _FEW:
            continue
        time = np.maximum(time_s, floor_s)[order]
        after = _medians(time[::-1])[::-1]
        before = _medians(time / bound_s[order]) * bound_s[order]
        most[order] = np.fmax(after, before)
    factor = time_s / np.where(most > 0, most, np.inf)
    return Suspicion(rows=factor > SLOW, factor=factor, other=most)


def constant(time_s: Floats, bound_s: Floats, impossible: Mask, lines: tuple[Lines, ...]) -> Suspicion:
    """Rows on lines whose times stay the same while the work grows, until it is too much for that time.

    Short of that, a fixed time may be overhead.
    """
    growth, line_number = np.ones(len(time_s)), np.zeros(len(time_s))
    work = np.where(bound_s > 0, bound_s, 1)
    for number, line in enumerate(lines):
        still = _spread(time_s, line.line) < STILL
        grown = _spread(work, line.line)
        broken = np.zeros(len(still), dtype=bool)
        broken[line.line[impossible]] = True
        here = (still & broken & (grown > GROWN))[line.line] & (grown[line.line] > growth)
        growth[here], line_number[here] = grown[line.line[here]], number
    return Suspicion(rows=growth > 1, factor=growth, other=line_number)


def fast_backward(seconds: Floats, bound_s: Floats) -> Suspicion:
    """Rows whose backward has no less work than forward, took less time, and is far more efficient."""
    (forward, backward), (least_f, least_b) = seconds.T, bound_s.T
    known = (least_f > 0) & (least_b >= least_f)
    factor = np.where(known, forward / backward * least_b / np.where(known, least_f, 1), 1)
    return Suspicion(rows=known & (backward < forward) & (factor > BACKWARD), factor=factor, other=forward)


def outliers(time_s: Floats, bound_s: Floats, left_out: Mask, lines: tuple[Lines, ...]) -> Suspicion:
    """Rows whose efficiency is far from their neighbours' estimate; those left out are neither judged nor used.

    Judged twice: a first time to find rows that should not be used as neighbours, a second time without those.
    """
    values = np.where(left_out, np.nan, np.log(time_s / np.where(bound_s > 0, bound_s, 1)))
    off, suspects = np.full(len(time_s), np.nan), left_out
    for _ in range(2):
        off = values - expected(lines, np.where(suspects, np.nan, values))
        suspects = left_out | (np.abs(off) > _outlying(off))
    factor = np.exp(np.abs(np.nan_to_num(off)))
    return Suspicion(rows=suspects & ~left_out, factor=factor, other=time_s / np.exp(np.nan_to_num(off)))


def non_monotone(time_s: Floats, bound_s: Floats, left_out: Mask, lines: tuple[Lines, ...]) -> Suspicion:
    """Rows that took far less time than most of their next neighbours with less work; of a single one, still less."""
    asked, against = np.zeros(len(time_s)), np.zeros(len(time_s))
    longest = np.full(len(time_s), -np.inf)
    for line in lines:
        for near in (line.near[:, 0], line.near[:, REACH]):
            smaller = (near >= 0) & (bound_s[near] < bound_s) & ~left_out[near]
            asked += smaller
            against += smaller & (time_s[near] > SHORTER * time_s)
            longest = np.where(smaller, np.maximum(longest, time_s[near]), longest)
    other = np.where(asked > 0, longest, time_s)
    most = (asked > 1) & (against > asked / 2)
    return Suspicion(
        rows=~left_out & (most | ((asked == 1) & (other > ALONE * time_s))), factor=other / time_s, other=other
    )


def bimodal(time_s: Floats, shapes: Integers, impossible: Mask) -> Suspicion:
    """Rows of a dense sweep of one size, the first column, that take many times what the fast ones of their size do,
    where such rows are many. Impossible rows are left out.
    """
    rows, factor, other = np.zeros(len(time_s), dtype=bool), np.ones(len(time_s)), time_s.copy()
    sweep = sweeps(shapes)
    for number in range(sweep.max(initial=0) + 1):
        here = np.flatnonzero((sweep == number) & ~impossible)
        here = here[np.argsort(shapes[here, 0], kind="stable")]
        if len(here) < AROUND:
            continue
        size = np.maximum(1, shapes[here, 0])
        by_size = np.exp(_fast_around(np.log(time_s[here] / size))) * size
        other[here] = np.maximum(by_size, _fast_around(time_s[here]))  # the least sizes take a fixed time
        factor[here] = time_s[here] / other[here]
        slow = here[factor[here] > SLOW_MODE]
        rows[slow] = len(slow) >= MODE_SHARE * len(here)
    return Suspicion(rows=rows, factor=factor, other=other)


def _fast_around(values: Floats) -> Floats:
    padded = np.pad(values, AROUND // 2, mode="reflect")
    return np.quantile(np.lib.stride_tricks.sliding_window_view(padded, AROUND), FAST_SHARE, axis=1)


def sweeps(shapes: Integers) -> Integers:
    """A number for each sweep of one size, the first column, all others equal."""
    _, sweep = np.unique(shapes[:, 1:], axis=0, return_inverse=True)
    return sweep.reshape(-1)


def copied(seconds: Floats) -> float:
    """The share of rows in which two directions agree, 0 where they are too few to suspect a copy."""
    if seconds.shape[1] < 2 or len(seconds) < _FEW:
        return 0.0
    share = float(np.mean(np.abs(seconds[:, 1] / seconds[:, 0] - 1) < COPIED))
    return share if share >= COPIED_SHARE else 0.0


def _outlying(off: Floats) -> float:
    known = np.abs(off[np.isfinite(off)])
    return max(float(np.log(OUTLIER)), OUTLIER_SIGMAS * _SIGMA * float(np.median(known)) if len(known) else 0.0)


def _medians(values: Floats) -> Floats:
    padded = np.concatenate([np.full(BESIDE, np.nan), values[:-1]])
    windows = np.sort(np.lib.stride_tricks.sliding_window_view(padded, BESIDE), axis=1)
    known = np.minimum(np.arange(len(values)), BESIDE)
    middle = np.take_along_axis(windows, (np.maximum(known - 1, 0) // 2)[:, None], axis=1)[:, 0]
    return np.asarray(np.where(known >= _FEW, middle, np.nan))


def _spread(values: Floats, line: Integers) -> Floats:
    lines = int(line.max(initial=-1)) + 1
    high, low = np.full(lines, -np.inf), np.full(lines, np.inf)
    np.maximum.at(high, line, values)
    np.minimum.at(low, line, values)
    return np.asarray(high / low)
