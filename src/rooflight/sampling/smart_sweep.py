"""The smart sweep: shapes that fill the space first, then those after which all others are known best.

First come shapes of a low-discrepancy sequence, the additive recurrence of Roberts with a random shift, over the
logarithms of the sizes. Where models of other devices are asked of each shape (``Views``), the next row is the shape,
among the next of the sequence, that lowers the variance of all others the most for each second. A Gaussian process
with a Matern 3/2 kernel has the variances, which do not depend on the times of the rows (Cohn, Ghahramani and Jordan,
Active Learning with Statistical Models, 1996); shapes at which the models differ vary more, and alike.

Without models the sequence is followed for a third of the budget. Then a kernel regression of the log of the time, its
trend linear in FLOPs and bytes, is left out one row at a time: new shapes go where those errors are greatest and no row
is near.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rooflight.costs.cost import OpCost
from rooflight.costs.operators.operator import Operator, Shape
from rooflight.costs.registry import cost_of
from rooflight.records.samples import Row, Rows, Status, middle_s
from rooflight.sampling.sweeps import Key, check_part, complete

Floats = NDArray[np.float64]
Views = Callable[[Sequence[Shape]], Mapping[str, Floats]]
"""What models of other devices answer of shapes, each less their average, as logarithms [shapes] by model."""

SPACE_FILLING: Final = 1 / 3
_LEAST_FITTED = 12
_FIRST = 3  # rows that fill the space, where models of other devices are asked
_UNITS = 4.0  # into which the span of a size is divided
_MOST_KNOWN = 300
_WORTH: Final = 0.5
"""Of a row's usual time: with less of the budget left no row is begun, so that sweeps end early as often as late."""
_POOL = 128
_NEAR = 0.2
_MOST_FITTED = 600
_GROWTH = 1.05  # the fit takes longer than a small op, so a few new rows do not bring a new one
_NOISE = 1e-3
_TRIES = 4000
_RUNS_A_BUDGET = 100
_COMPUTING_RUNS_A_BUDGET = 500
"""Libraries use other kernels for other sizes, so many small shapes teach more than a few large ones; traffic in
memory has one speed from some size on, which the largest show."""
_RATES: Final[Mapping[str, tuple[float, float]]] = {"cpu": (1e11, 1e10), "cuda": (2e14, 1.5e12)}
"""Rough FLOP/s and bytes/s: only to keep a single run far below the budget."""
_ROW_NOISE: Final = 0.05
_OFFSET: Final = 1.0
_OF_VIEWS: Final = 10.0
"""Variances of a row's noise, of what all shapes have in common, and of a unit by which models of other devices differ
from their average (e-fold), over that of the rest."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Points:
    """Shapes as points [shapes, dimensions], in units in which two have little in common, and what each model answers
    less the average of all, ``views`` [shapes, models] as logarithms; no model where none is asked.
    """

    places: Floats
    views: Floats

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, some: slice) -> Points:
        return Points(places=self.places[some], views=self.views[some])

    def covariance(self, other: Points) -> Floats:
        """Between these shapes and others, [these, others]."""
        squares = (self.places**2).sum(axis=1)[:, None] + (other.places**2).sum(axis=1)[None, :]
        apart = np.maximum(0.0, squares - 2 * self.places @ other.places.T) / max(1, self.places.shape[1])
        root = np.sqrt(3 * apart)
        alike = self.views @ other.views.T / max(1, self.views.shape[1])
        return np.asarray((1 + root) * np.exp(-root) + _OFFSET + _OF_VIEWS * alike)


def most_informative(sampled: Points, candidates: Points, use: Floats, seconds: Floats) -> int:
    """The candidate after which all are known best, by their ``use`` [candidates], for each of its ``seconds``
    [candidates]. ``sampled`` have a row each already.
    """
    spread = candidates.covariance(candidates)
    if len(sampled):
        known = sampled.covariance(sampled) + _ROW_NOISE * np.eye(len(sampled))
        shared = sampled.covariance(candidates)
        spread = spread - shared.T @ np.linalg.solve(known, shared)
    gain = use @ spread**2 / (np.diag(spread) + _ROW_NOISE)
    return int(np.argmax(gain / seconds))


class SmartSweep:
    """Shapes of one operator until ``budget_s`` seconds are spent on rows, those of earlier runs included.

    ``kind`` is "cpu" or "cuda". Each part follows another sequence. ``views`` asks models of other devices. Raises
    ValueError for a budget that is not positive and for a part that is not among the parts.
    """

    def __init__(
        self,
        operator: Operator,
        precision: str,
        *,
        budget_s: float,
        kind: str,
        parts: int = 1,
        part: int = 1,
        views: Views | None = None,
    ) -> None:
        check_part(parts, part)
        if not budget_s > 0:
            raise ValueError("--budget must be more than 0 seconds")
        self._operator, self._precision, self.budget_s = operator, precision, budget_s
        self._spans = {name: size.smart for name, size in operator.sizes.items()}
        self._flops_per_s, self._bytes_per_s = _RATES[kind]
        self._sequence = _Sequence(len(self._spans), seed=part)
        self._tried = 0
        self._views = views
        self._viewed: dict[Key, dict[str, float]] = {}
        self._sizes: dict[Key, tuple[float, float]] = {}
        self._fitted = 0
        self._known: Floats = np.empty((0, len(self._spans)))
        self._errors: Floats = np.empty(0)

    @property
    def total(self) -> int | None:
        """The budget decides."""
        return None

    def left_s(self, rows: Rows) -> float:
        """Seconds of the budget that no row has spent."""
        return max(0.0, self.budget_s - rows.spent_s)

    def next(self, rows: Rows, taken: Collection[Key] = ()) -> Shape | None:
        """The sequence's next shape, later the one of a pool of its next where most is to be learned. None where the
        rest of the budget is not worth another row.
        """
        usual_s = float(np.median([row.spent_s for row in rows.values()])) if len(rows) else 0.0
        left_s = self.budget_s - rows.spent_s
        if left_s <= 0 or (len(rows) >= _FIRST and left_s < _WORTH * usual_s):
            return None
        fitted = [row for row in rows.values() if row.status is Status.OK]
        if self._views is not None:
            return self._informative(rows, taken, fitted)
        if rows.spent_s < SPACE_FILLING * self.budget_s or len(fitted) < _LEAST_FITTED:
            pool = self._fresh(rows, taken, 1)
            return pool[0] if pool else None
        pool = self._fresh(rows, taken, _POOL)
        if not pool:
            return None
        if len(fitted) >= self._fitted * _GROWTH:
            self._fit(fitted[-_MOST_FITTED:])
            self._fitted = len(fitted)
        places = np.array([self._place(row.shape) for row in rows.values()])
        candidates = np.array([self._place(shape) for shape in pool])
        near = np.exp(-_squared(candidates, self._known) / (2 * _NEAR**2)) + 1e-9
        expected = (near @ self._errors) / near.sum(axis=1)
        distance = np.sqrt(_squared(candidates, places).min(axis=1))
        return pool[int(np.argmax(expected * distance))]

    def _informative(self, rows: Rows, taken: Collection[Key], fitted: Sequence[Row]) -> Shape | None:
        pool = self._fresh(rows, taken, _POOL if len(fitted) >= _FIRST else 1)
        if len(pool) < 2:
            return pool[0] if pool else None
        known = list(rows.values())[-_MOST_KNOWN:]
        points = self._points([*pool, *(row.shape for row in known)])
        candidates, sampled = points[: len(pool)], points[len(pool) :]
        near = np.exp(-_squared(candidates.places, sampled.places) / (2 * (_NEAR * _UNITS) ** 2)) + 1e-9
        spent = np.log([max(1e-6, row.spent_s) for row in known])
        seconds = np.exp(near @ spent / near.sum(axis=1))
        return pool[most_informative(sampled, candidates, np.ones(len(pool)), seconds)]

    def _points(self, shapes: Sequence[Shape]) -> Points:
        assert self._views is not None
        keys = [tuple(shape[name] for name in self._operator.parameters) for shape in shapes]
        new = [(key, shape) for key, shape in zip(keys, shapes, strict=True) if key not in self._viewed]
        found = self._views([shape for _, shape in new]) if new else {}
        for number, (key, _) in enumerate(new):
            self._viewed[key] = {name: float(each[number]) for name, each in found.items()}
        models = sorted({name for views in self._viewed.values() for name in views})
        views = [[self._viewed[key].get(name, 0.0) for name in models] for key in keys]
        return Points(places=_UNITS * np.array([self._place(shape) for shape in shapes]), views=np.array(views))

    def _fresh(self, rows: Rows, taken: Collection[Key], count: int) -> list[dict[str, int]]:
        found: dict[Key, dict[str, int]] = {}
        number, last = self._tried, self._tried + _TRIES
        while len(found) < count and number < last:
            shape = self._shape(number)
            number += 1
            key = rows.key(shape)
            if key in rows or key in taken or key in found or not self._fits(key, shape):
                if not found:
                    self._tried = number  # never to be looked at again
                continue
            found[key] = shape
        return list(found.values())

    def _shape(self, number: int) -> dict[str, int]:
        places = self._sequence.at(number)
        values = {name: span.at(place) for (name, span), place in zip(self._spans.items(), places, strict=True)}
        tie = self._operator.tie
        return complete(self._operator, tie(values) if tie else values)

    def _fits(self, key: Key, shape: Shape) -> bool:
        if self._operator.refusal(shape) is not None:
            return False
        flops, moved = self._size(key, shape)
        computes = flops / self._flops_per_s <= self.budget_s / _COMPUTING_RUNS_A_BUDGET
        return computes and moved / self._bytes_per_s <= self.budget_s / _RUNS_A_BUDGET

    def _size(self, key: Key, shape: Shape) -> tuple[float, float]:
        if key not in self._sizes:
            work = self._operator.work(shape, self._precision)
            costs = [cost for op in (*work.forward, *work.backward) if isinstance(cost := cost_of(op), OpCost)]
            flops = float(sum(cost.matrix_flops + cost.vector_flops for cost in costs))
            self._sizes[key] = flops, float(sum(cost.bytes_moved + cost.bytes_sent for cost in costs))
        return self._sizes[key]

    def _place(self, shape: Shape) -> list[float]:
        return [span.place(shape[name]) for name, span in self._spans.items()]

    def _fit(self, rows: Sequence[Row]) -> None:
        names = self._operator.parameters
        sizes = [self._size(tuple(row.shape[name] for name in names), row.shape) for row in rows]
        logs = np.array([[1.0, log(1 + flops), log(1 + moved)] for flops, moved in sizes])
        times_s = (sum(map(middle_s, row.samples_s.values())) for row in rows)
        wanted = np.array([log(max(1e-9, time_s)) for time_s in times_s])
        trend, *_ = np.linalg.lstsq(logs, wanted, rcond=None)
        rest = wanted - logs @ trend
        places = np.array([self._place(row.shape) for row in rows])
        reach = 0.25 * places.shape[1]
        inverse = np.linalg.inv(np.exp(-_squared(places, places) / (2 * reach)) + _NOISE * np.eye(len(rest)))
        self._known, self._errors = places, np.abs(inverse @ rest / np.diag(inverse))


class _Sequence:
    """Points that fill the unit cube evenly however many are taken: multiples of powers of a golden ratio."""

    def __init__(self, dimensions: int, *, seed: int) -> None:
        ratio = 2.0
        for _ in range(64):
            ratio = (1 + ratio) ** (1 / (dimensions + 1))
        self._steps = ratio ** -np.arange(1.0, dimensions + 1)
        self._shift = np.random.default_rng(seed).random(dimensions)

    def at(self, number: int) -> list[float]:
        """The point of this number."""
        return [float(place) for place in (self._shift + (number + 1) * self._steps) % 1.0]


def _squared(left: Floats, right: Floats) -> Floats:
    return np.asarray(((left[:, None, :] - right[None, :, :]) ** 2).sum(axis=-1), dtype=np.float64)
