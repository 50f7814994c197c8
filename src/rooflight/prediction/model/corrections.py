"""Corrections and refinements: what a few rows of one device teach on top of a model that learned from others.

Of a correction one factor for a kind of work, drawn to 1, or from 20 rows on a Gaussian process with that factor as its
mean. Of a refinement one offset, or for more rows the mean of Gaussian processes of several length scales: rows that
look alike are missed alike, and a device's times are nearer to those of some of the model's experts than their average.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rooflight.devices.spec import DeviceSpec
from rooflight.prediction.model.packing import MOST_LOG, Arrays, process_from
from rooflight.prediction.model.smooth import Smooth, distances, lone_point, matern, smooth
from rooflight.prediction.work.facts import Floats
from rooflight.prediction.work.features import names_of, size_features

LEAST_ROWS: Final = 5
"""Least number of measurements for a factor."""
ENOUGH_FOR_PLACES: Final = 20
"""Rows from which a Gaussian process learns where answers are off."""
FARTHEST: Final = 2.0
"""As a logarithm, how far off a row is taken to be at most: one broken row must not settle the others."""
_DOUBT: Final = 3.0  # rows without any effect that what was seen has to outweigh
_FOLDS: Final = 5
_MOST_FIGURE: Final = 1e9
_SLACK: Final = 0.02
_INTERVAL: Final = (0.05, 0.95)
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """What is added to the answers, log(time / bound), of a model on one device.

    ``low`` and ``high`` [features] are the ranges of the rows that it learned from, of which there are ``rows``.
    ``inside``: 5 % and 95 % quantiles of log(true / corrected) of rows held out; ``error`` their mean absolute
    percentage error, as a fraction.
    """

    device: str
    rows: int
    low: Floats
    high: Floats
    inside: tuple[float, float]
    error: float
    near: Smooth

    def predict(self, values: Floats) -> Floats:
        """What to add to the answers for rows of features [rows, features]."""
        return self.near.predict(values, fades=True)

    def knows(self, values: Floats, sizes: tuple[int, ...]) -> Mask:
        """Which rows of features are like those that it learned from, by these features."""
        if self.rows < ENOUGH_FOR_PLACES:
            return np.zeros(len(values), dtype=bool)
        places = list(sizes)
        slack = (1e-9 + _SLACK * (self.high - self.low))[places]
        asked = values[:, places]
        inside = (asked >= self.low[places] - slack) & (asked <= self.high[places] + slack)
        return np.asarray(inside.all(axis=1))


class AboutCorrection(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What is kept of a correction beside its points."""

    device: str
    rows: int
    low: list[float]
    high: list[float]
    inside: tuple[float, float]
    error: float


def about_correction(made: Correction) -> AboutCorrection:
    """All but the arrays."""
    return AboutCorrection(
        device=made.device,
        rows=made.rows,
        low=made.low.tolist(),
        high=made.high.tolist(),
        inside=made.inside,
        error=made.error,
    )


def correction_from(about: AboutCorrection, name: str, features: int, arrays: Arrays) -> Correction:
    """The correction whose arrays begin with ``name``. Raises ValueError, one line, for what cannot be one."""
    low, high = about.inside
    figures = (*about.low, *about.high, about.rows, about.error)
    if (
        (len(about.low), len(about.high)) != (features, features)
        or any(least > most for least, most in zip(about.low, about.high, strict=True))
        or not all(abs(figure) < _MOST_FIGURE for figure in figures)
        or not -MOST_LOG < low <= 0 <= high < MOST_LOG
    ):
        raise ValueError(f"no model of rooflight fit ({name} holds impossible numbers): fit it again")
    return Correction(
        device=about.device,
        rows=about.rows,
        low=np.array(about.low),
        high=np.array(about.high),
        inside=about.inside,
        error=about.error,
        near=process_from(name, features, arrays),
    )


def correction(
    device: DeviceSpec, values: Floats, missed: Floats, *, factor_only: bool = False, fades: bool = False
) -> Correction | None:
    """What rows of features [rows, features] teach of which log(true / answered) is ``missed`` [rows]; None of fewer
    than 5, and where the answers held out are no better for it. ``factor_only`` keeps no row; where the correction
    ``fades``, it is nothing far from all rows.
    """
    if len(missed) < LEAST_ROWS or (factor_only and fades):
        return None
    part = np.random.default_rng(0).permutation(len(missed)) % _FOLDS
    ways = [False] * (not fades) + [True] * (not factor_only and (fades or len(missed) >= ENOUGH_FOR_PLACES))
    held_out = {way: np.empty(len(missed)) for way in ways}
    for way, left in held_out.items():
        for fold in range(_FOLDS):
            out = part == fold
            left[out] = missed[out] - _learned(values[~out], missed[~out], way, fades).predict(values[out], fades=True)
    best = min(held_out, key=lambda way: float(np.abs(held_out[way]).mean()))
    left = held_out[best]
    if np.abs(left).mean() >= np.abs(missed).mean():
        return None
    return Correction(
        device=device.name,
        rows=len(missed),
        low=values.min(axis=0),
        high=values.max(axis=0),
        inside=_quantiles(left),
        error=float(np.mean(np.abs(np.expm1(-left)))),
        near=_learned(values, missed, best, fades),
    )


def _learned(values: Floats, missed: Floats, places: bool, fades: bool) -> Smooth:
    target = np.clip(missed, -FARTHEST, FARTHEST)
    factor = 0.0 if fades else float(np.median(target)) * len(target) / (len(target) + _DOUBT)
    return smooth(values, target, mean=factor) if places else lone_point(values.shape[1], factor)


def _quantiles(left: Floats) -> tuple[float, float]:
    room = (1 - _INTERVAL[1]) / len(left)
    low, high = np.quantile(left, (max(0.0, _INTERVAL[0] - room), min(1.0, _INTERVAL[1] + room)))
    return min(0.0, float(low)), max(0.0, float(high))


Interval = tuple[float, float]
LENGTHS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Length scales, in units of the root mean square of the distances by feature."""
MOST_POINTS: Final = 300
_FIELDS: Final = ("points", "weight", "views")
_FLOAT: Final = np.dtype("<f4")
_BLOCK: Final = 512
_MOST_NUMBER: Final = 1e9
FADES: Final = 1.0
"""As a logarithm of sizes, how far beyond those of the rows an e-th is left of what they taught. Without, 16 small rows
of a trace made a step of large work 1.5 to 2.8 times too slow.
"""


class AboutRefinement(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What is kept of a refinement beside its arrays."""

    device: str
    kind: str
    rows: int
    low: list[float]
    high: list[float]
    inside: Interval
    outside: Interval
    error: float
    error_before: float
    launch_s: float
    least_s: float
    offset: float
    floor: float
    ceiling: float
    unit: list[float]
    seen: list[Interval] | None


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
class Refinement:
    """What ``rows`` measurements of a device add to a model's log(time / bound): ``offset`` and what ``process`` has,
    between ``floor`` and ``ceiling``, the least and the most that they were missed by.

    ``low`` and ``high`` [features] are their ranges. ``inside`` and ``outside`` are 5 % and 95 % of log(true /
    predicted) for work within and beyond these. ``error`` is the mean absolute percentage error of rows left out,
    ``error_before`` that of the model without them, as fractions. ``launch_s`` seconds of each time are a launch.
    ``least_s`` is the device's shortest kernel. ``kind`` is the only kind of work it is for; empty where it is for all
    that the model answers.
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


def about_refinement(refinement: Refinement) -> AboutRefinement:
    """All but the arrays."""
    process = refinement.process
    return AboutRefinement(
        device=refinement.device,
        kind=refinement.kind,
        rows=refinement.rows,
        low=refinement.low.tolist(),
        high=refinement.high.tolist(),
        inside=refinement.inside,
        outside=refinement.outside,
        error=refinement.error,
        error_before=refinement.error_before,
        launch_s=refinement.launch_s,
        least_s=refinement.least_s,
        offset=refinement.offset,
        floor=refinement.floor,
        ceiling=refinement.ceiling,
        unit=process.unit.tolist() if process else [],
        seen=[(low, high) for low, high in process.seen.tolist()] if process else None,
    )


def arrays_of_refinement(refinement: Refinement) -> dict[str, NDArray[Any]]:
    """Its arrays, each of one dimension."""
    if refinement.process is None:
        return {}
    return {name: getattr(refinement.process, name).reshape(-1).astype(_FLOAT) for name in _FIELDS}


def refinement_from(
    found: AboutRefinement, name: str, features: int, experts: int, arrays: Mapping[str, NDArray[Any]]
) -> Refinement:
    """The refinement whose arrays begin with ``name``. Raises ValueError, one line, for what cannot be one."""
    process = _process(found, name, features, experts, arrays) if found.seen is not None else None
    figures = (*found.low, *found.high, found.rows, found.error, found.error_before, found.launch_s, found.offset)
    most = max(abs(found.floor), abs(found.ceiling))
    if (
        (len(found.low), len(found.high)) != (features, features)
        or any(low > high for low, high in zip(found.low, found.high, strict=True))
        or not all(abs(figure) < _MOST_NUMBER for figure in figures)
        or not all(-MOST_LOG < low <= 0 <= high < MOST_LOG for low, high in (found.inside, found.outside))
        or found.rows < 1
        or not 0 <= min(found.launch_s, found.least_s) <= max(found.launch_s, found.least_s) < 1
        or not found.floor <= found.ceiling
        or not most < MOST_LOG
    ):
        raise ValueError(f"no model of rooflight fit ({name} holds impossible numbers): fit it again")
    return Refinement(
        device=found.device,
        kind=found.kind,
        rows=found.rows,
        low=np.array(found.low),
        high=np.array(found.high),
        inside=found.inside,
        outside=found.outside,
        error=found.error,
        error_before=found.error_before,
        launch_s=found.launch_s,
        least_s=found.least_s,
        offset=found.offset,
        floor=found.floor,
        ceiling=found.ceiling,
        process=process,
    )


def _process(
    found: AboutRefinement, name: str, features: int, experts: int, arrays: Mapping[str, NDArray[Any]]
) -> Process:
    whole = [arrays.get(f"{name}.{field}") for field in _FIELDS]
    points, weight, views = (
        each.astype(np.float64)
        if each is not None and each.dtype == _FLOAT and np.isfinite(each).all()
        else np.full(1, np.nan)
        for each in whole
    )
    rows, unit, seen = len(weight) // len(LENGTHS), np.array(found.unit), np.array(found.seen).reshape(-1, 2)
    ranges: Sequence[Floats] = (points, weight, views, unit, seen)
    if (
        not 1 <= rows <= MOST_POINTS
        or (len(weight), len(points)) != (rows * len(LENGTHS), rows * features)
        or len(unit) != features
        or len(views) not in (0, experts)
        or len(seen) != len(views)
        or not all(np.isfinite(each).all() for each in ranges)
        or (unit < 0).any()
        or (seen[:, 0] > seen[:, 1]).any()
    ):
        raise ValueError(f"no model of rooflight fit ({name}: rows whose arrays do not fit): fit it again")
    return Process(
        unit=unit,
        points=points.reshape(rows, features),
        weight=weight.reshape(len(LENGTHS), rows),
        views=views,
        seen=seen,
    )
