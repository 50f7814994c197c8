"""Correction: what a few rows of a device teach of how far off a model's answers, log(time / bound), are there.

What the answers miss of those rows, log(true / predicted), is one offset for very few of them. For more it is the mean
of Gaussian processes of several length scales: rows that look alike are missed alike, and a device's times are nearer
to those of some of the model's experts than their average is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
import numpy as np

from rooflight.prediction.facts import Floats
from rooflight.prediction.features import names_of, size_features
from rooflight.prediction.packing import MOST_LOG
from rooflight.prediction.smooth import distances, matern

Interval = tuple[float, float]
LENGTHS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Length scales, in units of the root mean square of the distances by feature."""
MOST_POINTS: Final = 300
_BLOCK: Final = 512
_MOST_FIGURE: Final = 1e9
FADES: Final = 1.0
"""As a logarithm of sizes, how far beyond those of the rows an e-th is left of what they taught. Without, 16 small rows
of a trace made a step of large work 1.5 to 2.8 times too slow.
"""


class Process(msgspec.Struct, frozen=True, kw_only=True, eq=False, forbid_unknown_fields=True):
    """``points`` [rows, features] are the rows' features in units of ``unit`` [features], 0 for those that do not
    count; ``weight`` [lengths, rows] is what each row adds in proportion to its kernel; ``views`` [experts] what each
    expert's distance from the model's answer adds, within ``seen`` [experts, 2], the range of that among the rows.
    Raises ValueError for arrays that do not fit each other.
    """

    unit: Floats
    points: Floats
    weight: Floats
    views: Floats
    seen: Floats

    def __post_init__(self) -> None:
        rows, features = len(self.points), len(self.unit)
        shapes = (self.unit.shape, self.points.shape, self.weight.shape, self.views.shape, self.seen.shape)
        if (
            shapes != ((features,), (rows, features), (len(LENGTHS), rows), (len(self.views),), (len(self.views), 2))
            or not 1 <= rows <= MOST_POINTS
            or not _plausible((self.unit, self.points, self.weight, self.views, self.seen))
            or (self.unit < 0).any()
            or (self.seen[:, 0] > self.seen[:, 1]).any()
        ):
            raise ValueError("rows of a correction whose arrays do not fit")

    def predict(self, values: Floats, apart: Floats) -> Floats:
        """What is added, beside an offset, for rows of features [rows, features], ``apart`` [rows, experts]."""
        used = self.unit > 0
        points = self.points[:, used]
        low, high = points.min(axis=0), points.max(axis=0)
        out = np.zeros(len(values))
        for start in range(0, len(values), _BLOCK):
            asked = np.clip(values[start : start + _BLOCK, used] / self.unit[used], low, high)
            distance = distances(asked, points) / np.sqrt(max(1, used.sum()))
            for length, each in zip(LENGTHS, self.weight, strict=True):
                out[start : start + _BLOCK] += matern(distance / length) @ each
        if len(self.views):
            out += np.clip(apart, self.seen[:, 0], self.seen[:, 1]) @ self.views
        return out


class Correction(msgspec.Struct, frozen=True, kw_only=True, eq=False, forbid_unknown_fields=True):
    """What ``rows`` measurements of a device add to a model's log(time / bound): ``offset`` and what ``process`` has,
    between ``floor`` and ``ceiling``, the least and the most that they were missed by.

    ``low`` and ``high`` [features] are their ranges. ``inside`` and ``outside`` are 5 % and 95 % of log(true /
    predicted) for work within and beyond these. ``error`` is the mean absolute percentage error of rows left out,
    ``error_before`` that of the model without them, as fractions. ``launch_s`` seconds of each time are a launch.
    ``least_s`` is the device's shortest kernel. ``kind`` is the only kind of work it is for; empty where it is for all
    that the model answers. ``beside``: learned with the experts, from sessions beside their tables: it corrects only
    work that is strange to the device's own expert, and on a device without one answers without the launches of other
    devices. The others were learned later, on top of all that. Raises ValueError for impossible numbers.
    """

    device: str
    rows: int
    low: Floats
    high: Floats
    inside: Interval
    outside: Interval
    error: float
    error_before: float
    offset: float
    floor: float
    ceiling: float
    process: Process | None = None
    launch_s: float = 0.0
    kind: str = ""
    least_s: float = 0.0
    beside: bool = False

    def __post_init__(self) -> None:
        figures = np.array((self.rows, self.error, self.error_before, self.offset))
        if (
            not self.low.shape == self.high.shape == (len(self.low),)
            or not _plausible((self.low, self.high, figures))
            or (self.low > self.high).any()
            or not all(-MOST_LOG < low <= 0 <= high < MOST_LOG for low, high in (self.inside, self.outside))
            or self.rows < 1
            or not (0 <= self.launch_s < 1 and 0 <= self.least_s < 1)
            or not -MOST_LOG < self.floor <= self.ceiling < MOST_LOG
        ):
            raise ValueError("a correction with impossible numbers")

    def fits(self, features: int, experts: int) -> bool:
        """Whether it can correct a model of so many features and experts."""
        if self.process is None:
            return len(self.low) == features
        return len(self.low) == len(self.process.unit) == features and len(self.process.views) in (0, experts)

    @property
    def compares(self) -> bool:
        """Whether it asks how far each expert is from the model's answer."""
        return self.process is not None and len(self.process.views) > 0

    def added(self, key: str, values: Floats, apart: Floats, slowdown: Floats) -> Floats:
        """What is added to a model's answers, ``slowdown`` [rows], to rows of features [rows, features] of work of a
        key. ``apart`` [rows, experts] is each expert's answer less the model's; not read unless it ``compares``.

        No answer is below the device's shortest kernel. What the rows taught fades beyond the ranges of their sizes: of
        work e times larger or smaller, by a factor of e^(1 / FADES).
        """
        found = np.full(len(values), self.offset)
        if self.process is not None:
            found += self.process.predict(values, apart)
        sizes = list(size_features(key))
        some = values[:, sizes]
        beyond = np.maximum(self.low[sizes] - some, some - self.high[sizes]).max(axis=1, initial=0.0)
        fades = np.exp(-np.maximum(0.0, beyond) / FADES)
        short = np.maximum(0.0, shortest(key, values, self.least_s) - slowdown)
        return np.asarray(short + fades * np.clip(found, self.floor, self.ceiling))


def shortest(key: str, values: Floats, least_s: float) -> Floats:
    """log(time / bound) of rows of features [rows, features] where each op takes ``least_s``; far below 0 where that is
    nothing, and of collectives.
    """
    names = names_of(key)
    if not least_s or "ops" not in names:
        return np.full(len(values), -MOST_LOG)
    return np.asarray(np.log(least_s * np.maximum(1.0, values[:, names.index("ops")])) - values[:, 0])


def _plausible(arrays: Iterable[Floats]) -> bool:
    return all(bool((np.abs(each) < _MOST_FIGURE).all()) for each in arrays)  # nor NaN
