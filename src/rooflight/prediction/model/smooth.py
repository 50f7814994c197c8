"""Smooth: a Gaussian process for few rows, where trees are too coarse. numpy predicts; scipy settles its scales."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rooflight.prediction.work.facts import Floats

MOST_ROWS: Final = 1500
_SETTLED: Final = 250
"""Rows from which the scales are settled: that takes the cube of their number."""
_BLOCK: Final = 512
_JITTER: Final = 1e-6
_LOG_SCALES: Final = (-2.0, 4.0)
_LOG_NOISE: Final = (-9.0, 1.0)
_STEPS: Final = 40
_BESIDE: Final = 2.0
_SHRINK: Final = 0.05  # how strongly log length scales are drawn to 0, in nats


@dataclass(frozen=True, eq=False)
class Smooth:
    """Posterior mean of a Gaussian process with a Matern 3/2 kernel, one length scale a feature.

    ``scale`` [features]: a feature counts in these units, 0 not at all. ``points`` [rows, features] are the features it
    was shown in those units, ``weight`` [rows] what each adds in proportion to its kernel, ``mean`` what there is
    without any. What lies outside of the points' ranges is answered as at their edge, and never below ``floor`` or
    above ``ceiling``. Raises ValueError for arrays that do not fit each other or are not finite. Rasmussen and
    Williams, Gaussian Processes for Machine Learning, 2.2, 4.2.
    """

    scale: NDArray[np.float32]
    points: NDArray[np.float32]
    weight: NDArray[np.float32]
    mean: float
    floor: float
    ceiling: float

    def __post_init__(self) -> None:
        if self.scale.ndim != 1 or self.points.shape != (len(self.weight), len(self.scale)) or not len(self.weight):
            raise ValueError("points whose arrays are of different lengths")
        if len(self.weight) > MOST_ROWS:
            raise ValueError("more points than there can be")
        arrays = (self.scale, self.points, self.weight, np.array([self.mean, self.floor, self.ceiling]))
        if not all(np.isfinite(each).all() for each in arrays) or (self.scale < 0).any():
            raise ValueError("points with numbers that are not finite")

    @property
    def reach(self) -> float:
        """The largest magnitude that a prediction can have."""
        return max(abs(self.floor), abs(self.ceiling))

    def predict(self, values: Floats, *, fades: bool = False) -> Floats:
        """The mean for rows of features [rows, features]; where it ``fades``, what lies outside of the points' ranges
        is as far from them as it is.
        """
        used = self.scale > 0
        points = self.points[:, used].astype(np.float64)
        low, high = points.min(axis=0), points.max(axis=0)
        out = np.empty(len(values))
        for start in range(0, len(values), _BLOCK):
            block = values[start : start + _BLOCK, used] / self.scale[used]
            block = block if fades else np.clip(block, low, high)
            out[start : start + _BLOCK] = self.mean + matern(distances(block, points)) @ self.weight.astype(np.float64)
        return np.clip(out, self.floor, self.ceiling)

    def beside(self, values: Floats, places: Sequence[int], *, more: float = 0.0) -> NDArray[np.bool_]:
        """Which rows of features [rows, features] have a point within a factor of ``_BESIDE``, and e to the power of
        ``more``, in the features at some places, which are logarithms; of those only that count. None where nothing
        counts: where its points were is not known then.
        """
        if not (self.scale > 0).any():
            return np.zeros(len(values), dtype=bool)
        used = [place for place in places if self.scale[place] > 0]
        unit = self.scale[used].astype(np.float64)
        points = self.points[:, used].astype(np.float64) * unit
        found = np.zeros(len(values), dtype=bool)
        for start in range(0, len(values), _BLOCK):
            apart = np.abs(values[start : start + _BLOCK, None, used] - points).max(axis=2, initial=0.0)
            found[start : start + _BLOCK] = apart.min(axis=1) <= log(_BESIDE) + more
        return found


def lone_point(features: int, mean: float) -> Smooth:
    """A process that answers the same everywhere."""
    none = np.zeros(features, dtype=np.float32)
    return Smooth(
        scale=none, points=none[None], weight=np.zeros(1, dtype=np.float32), mean=mean, floor=mean, ceiling=mean
    )


def smooth(values: Floats, target: Floats, *, mean: float | None = None) -> Smooth:
    """A process that predicts ``target`` [rows] from features [rows, features], its scales by maximum likelihood; from
    some of more rows than it may keep. ``mean`` is what it predicts far from all rows, by default that of the target.
    """
    if len(values) > MOST_ROWS:
        kept = np.sort(np.random.default_rng(1).permutation(len(values))[:MOST_ROWS])
        values, target = values[kept], target[kept]
    spread = values.std(axis=0)
    used = spread > 1e-9
    mean = float(target.mean()) if mean is None else mean
    size = float(np.sqrt(np.mean((target - mean) ** 2))) or 1.0
    units = values[:, used] / spread[used]
    wanted = (target - mean) / size
    some = np.random.default_rng(0).permutation(len(values))[:_SETTLED]
    lengths, noise = _settled(units[some], wanted[some])
    scale = np.zeros(values.shape[1])
    scale[used] = spread[used] * lengths
    points = np.divide(values, scale, out=np.zeros_like(values), where=scale > 0)
    kernel = matern(distances(points, points)) + (noise + _JITTER) * np.eye(len(points))
    weight = size * np.linalg.solve(kernel, wanted)
    return Smooth(
        scale=scale.astype(np.float32),
        points=points.astype(np.float32),
        weight=weight.astype(np.float32),
        mean=mean,
        floor=min(mean, float(target.min())),
        ceiling=max(mean, float(target.max())),
    )


def _settled(units: Floats, wanted: Floats) -> tuple[Floats, float]:
    """Length scales and noise over signal that make what was seen most likely; the signal's size follows from them."""
    from scipy.optimize import minimize

    rows, count = units.shape
    apart = [(units[:, None, place] - units[None, :, place]) ** 2 for place in range(count)]

    def cost(logs: Floats) -> tuple[float, Floats]:
        shares = [each * np.exp(-2 * length) for each, length in zip(apart, logs[:count], strict=True)]
        distance = np.sqrt(sum(shares) + 1e-12) if shares else np.zeros((rows, rows))
        decay = np.exp(-sqrt(3) * distance)
        noise = float(np.exp(logs[count]))
        inverse = np.linalg.inv((1 + sqrt(3) * distance) * decay + (noise + _JITTER) * np.eye(rows))
        sign, determinant = np.linalg.slogdet(inverse)
        alpha = inverse @ wanted
        signal = max(float(wanted @ alpha) / rows, 1e-9)
        likelihood = 0.5 * rows * log(signal) - 0.5 * float(determinant) * float(sign > 0)
        rest = inverse - np.outer(alpha, alpha) / signal
        slope = [0.5 * float((rest * (3 * decay * share)).sum()) for share in shares]
        slope.append(0.5 * float(np.trace(rest)) * noise)
        pull = np.append(logs[:count], 0.0)
        return likelihood + _SHRINK * float(pull @ pull), np.array(slope) + 2 * _SHRINK * pull

    start = np.append(np.ones(count), -3.0)
    bounds: list[Any] = [*[_LOG_SCALES] * count, _LOG_NOISE]
    found = minimize(cost, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _STEPS}).x
    return np.exp(found[:count]), float(np.exp(found[count]))


def distances(left: Floats, right: Floats) -> Floats:
    """Euclidean distances [left, right] between points [left, features] and [right, features]."""
    squared = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None, :] - 2 * left @ right.T
    return np.asarray(np.sqrt(np.maximum(squared, 0.0)))


def matern(distance: Floats) -> Floats:
    """The Matern 3/2 kernel of distances in length scales."""
    return np.asarray((1 + sqrt(3) * distance) * np.exp(-sqrt(3) * distance))
