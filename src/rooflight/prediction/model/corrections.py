"""What rows of one device taught, in figures; and corrections and refinements: what a few rows teach on top of a model
that learned from others.

Of a correction one factor for a kind of work, drawn to 1, or from 20 rows on a Gaussian process with that factor as its
mean. Of a refinement one offset, or for more rows the mean of Gaussian processes of several length scales: rows that
look alike are missed alike, and a device's times are nearer to those of some of the model's experts than their average.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rooflight.prediction.model.packing import MOST_LOG
from rooflight.prediction.model.smooth import Smooth, distances, matern
from rooflight.prediction.work.facts import Floats
from rooflight.prediction.work.features import names_of, size_features

Interval = tuple[float, float]
Mask = NDArray[np.bool_]
ENOUGH_FOR_PLACES: Final = 20
"""Rows from which a correction's Gaussian process learns where answers are off."""
LENGTHS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Length scales of a refinement, in units of the root mean square of the distances by feature."""
MOST_POINTS: Final = 300
"""Rows that a refinement keeps at most."""
FADES: Final = 1.0
"""As a logarithm of sizes, how far beyond those of the rows an e-th is left of what they taught. Without, 16 small rows
of a trace made a step of large work 1.5 to 2.8 times too slow.
"""
_BLOCK: Final = 512
_SLACK: Final = 0.02  # of a feature's range: what lies no further outside counts as inside


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Learned:
    """What ``rows`` measurements of one device taught.

    ``low`` and ``high`` [features] are their ranges. ``inside`` are the 5 % and 95 % quantiles of log(true / predicted)
    of held-out work like them, ``error`` the mean absolute percentage error, held out, as a fraction.
    """

    device: str
    rows: int
    low: Floats
    high: Floats
    inside: Interval
    error: float

    @property
    def slack(self) -> Floats:
        """How far outside of the ranges [features] work may lie that counts as inside."""
        return np.asarray(1e-9 + _SLACK * (self.high - self.low))

    def knows(self, key: str, values: Floats, *, below: float = 0.0) -> Mask:
        """Which rows of features [rows, features] are like those that it learned from, by their sizes, or less than
        those by ``below`` at most.
        """
        sizes, some = list(size_features(key)), values[:, list(size_features(key))]
        low, high = (self.low - self.slack)[sizes] - below, (self.high + self.slack)[sizes]
        return np.asarray(((some >= low) & (some <= high)).all(axis=1))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpertFigures(Learned):
    """What an expert has beside its learners. ``outside`` as ``inside``, for work larger than its rows. ``launch_s``
    seconds of every time that it learned from are a launch (``fit.rows``). ``floor_s``: each op takes so much beyond
    its bound however small it is; the learners answer log(time / (bound + ops x floor)), which varies little among
    small ops. ``usual``: its answers are to be added to ``usual_slowdown``.
    """

    traits: Mapping[str, float]
    outside: Interval
    launch_s: float = 0.0
    floor_s: float = 0.0
    usual: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Correction(Learned):
    """What is added to the answers, log(time / bound), of a model on one device: what ``near`` answers. From ``rows``
    enough on it has intervals of its own, ``inside``.
    """

    near: Smooth

    def predict(self, values: Floats) -> Floats:
        """What to add to the answers for rows of features [rows, features]."""
        return self.near.predict(values, fades=True)

    def knows(self, key: str, values: Floats, *, below: float = 0.0) -> Mask:
        """Those rows alone that are beside one of the few that it learned from."""
        beside = self.near.beside(values, size_features(key), more=below)
        return Learned.knows(self, key, values, below=below) & beside


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Process:
    """``points`` [rows, features] are the rows' features in units of ``unit`` [features], 0 for those that do not
    count; ``weight`` [lengths, rows] is what each row adds in proportion to its kernel; ``views`` [experts] what each
    expert's distance from the model's answer adds, within ``seen`` [experts, 2], the range of that among the rows.
    """

    unit: Floats
    points: Floats
    weight: Floats
    views: Floats
    seen: Floats

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RefinementFigures(Learned):
    """What a refinement has beside its process. ``inside`` and ``outside`` are 5 % and 95 % of log(true / predicted)
    for work within and beyond the ranges of its rows, ``error_before`` the error of the model without them. What it
    adds begins with ``offset`` and lies between ``floor`` and ``ceiling``, the least and the most that the rows were
    missed by. ``launch_s`` seconds of each time are a launch. ``least_s`` is the device's shortest kernel. ``kind`` is
    the only kind of work it is for; empty where it is for all that the model answers.
    """

    outside: Interval
    error_before: float
    offset: float
    floor: float
    ceiling: float
    launch_s: float = 0.0
    kind: str = ""
    least_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Refinement(RefinementFigures):
    """What rows of a device add to a model's log(time / bound): ``offset`` and what ``process`` has."""

    process: Process | None = None

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
