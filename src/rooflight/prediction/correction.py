"""Correction: what a few measurements on a device teach beside a model: how far off its answers are there.

Few rows teach one factor for a kind of work, drawn to 1; from 20 rows on a Gaussian process, whose mean is that factor,
learns where the answers are off by how much. Far from all rows the factor is all that is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rooflight.devices.spec import DeviceSpec
from rooflight.prediction.facts import Floats
from rooflight.prediction.packing import MOST_LOG, Arrays, process_from
from rooflight.prediction.smooth import Smooth, lone_point, smooth

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
