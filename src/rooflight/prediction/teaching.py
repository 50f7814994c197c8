"""Teaching: experts from measured work, the way of learning chosen and the errors found on rows held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rooflight.devices.spec import DeviceSpec
from rooflight.prediction.features import OTHERS_KEY, Floats, features_of, steady_features
from rooflight.prediction.model import Expert, Interval, Learner, Model, traits_of
from rooflight.prediction.smooth import MOST_ROWS, smooth
from rooflight.prediction.trees import WAYS, Way, grow

LEAST_ROWS: Final = 30
"""Measurements of which an expert can be made: fewer say little of how wrong it is."""
FOLDS: Final = 3
UNSEEN: Final = (-0.7, 0.7)
"""A factor of two: what to expect of a new device when only one was ever seen."""
_INTERVAL: Final = (0.05, 0.95)
_LARGEST_SHARE: Final = 0.2
_SOME: Final = 1000  # rows of a device are enough to say how far off the others are
_TRIED: Final = 10_000  # rows are enough to see which way of learning does best
_DETAILED: Final = 10_000  # rows of which trees for larger work may have many leaves too
_MOST_OTHERS: Final = 6000  # rows of all kinds together
_MOST_KINDS: Final = 12  # groups of kinds held out in turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Measured work of one kind on one device: facts [rows, facts] and log(time / bound) [rows]."""

    key: str
    device: DeviceSpec
    facts: Floats
    slowdown: Floats


def learn(shown: Sequence[Shown]) -> Model:
    """A model of work of one kind. Raises ValueError for a device with fewer than 30 rows."""
    return join([teach(each) for each in shown], shown)


def teach(shown: Shown, *, trees_only: bool = False) -> Expert:
    """What the rows of one device teach. The way of learning is the one that does best on a third held out, with
    ``trees_only`` none that keeps the shapes it was shown; intervals come from thirds held out in turn, and from the
    largest fifth by bound. Raises ValueError for fewer than 30 rows.
    """
    key, device, slowdown = shown.key, shown.device, shown.slowdown
    if len(slowdown) < LEAST_ROWS:
        raise ValueError(f"{key}: {len(slowdown)} rows are too few to learn from, sample at least {LEAST_ROWS}")
    values = features_of(key, shown.facts, device)
    part = np.random.default_rng(0).permutation(len(values)) % FOLDS
    way = _best_way(values, slowdown, part, trees_only=trees_only)
    held_out = np.empty(len(values))
    for fold in range(FOLDS):
        test = part == fold
        held_out[test] = _missed(_learned(values[~test], slowdown[~test], way), values[test], slowdown[test])
    inside = further = _quantiles(held_out)
    steady = list(steady_features(key))
    plain = way if way is None or len(values) > _DETAILED else replace(way, many_leaves=False)
    large = values[:, 0] > np.quantile(values[:, 0], 1 - _LARGEST_SHARE)
    is_steady = False
    if large.any() and not large.all():
        from_all = _missed(_learned(values[~large], slowdown[~large], way), values[large], slowdown[large])
        further = _quantiles(from_all)
        if steady:
            some = values[:, steady]
            from_some = _missed(_learned(some[~large], slowdown[~large], plain), some[large], slowdown[large])
            is_steady = _error(from_some) < _error(from_all)
            further = _quantiles(from_some) if is_steady else further
    return Expert(
        device=device.name,
        traits=traits_of(device),
        rows=len(values),
        low=values.min(axis=0),
        high=values.max(axis=0),
        inside=inside,
        outside=(min(inside[0], further[0]), max(inside[1], further[1])),
        error=_error(held_out),
        main=_learned(values, slowdown, way),
        beyond=_learned(values[:, steady], slowdown, plain) if is_steady else None,
    )


def _best_way(values: Floats, slowdown: Floats, part: NDArray[np.int64], *, trees_only: bool) -> Way | None:
    """The way to learn that does best on rows held out: all folds of few rows, one of many, from some thousand others.
    None: smoothly, without trees.
    """
    few = len(values) <= MOST_ROWS
    ways: tuple[Way | None, ...] = (None, *WAYS) if few and not trees_only else WAYS
    if len(values) > _DETAILED:
        ways = tuple(way for way in WAYS if way.many_leaves)
    folds = range(FOLDS) if few else range(1)
    errors = []
    for way in ways:
        missed = []
        for fold in folds:
            test = part == fold
            train = np.random.default_rng(1).permutation(np.flatnonzero(~test))[:_TRIED]
            missed.append(_missed(_learned(values[train], slowdown[train], way), values[test], slowdown[test]))
        errors.append(float(np.mean(np.abs(np.concatenate(missed)))))
    return ways[int(np.argmin(errors))]


def _learned(values: Floats, slowdown: Floats, way: Way | None) -> Learner:
    return smooth(values, slowdown) if way is None else grow(values, slowdown, way)


def teach_others(shown: Sequence[Shown], *, trees_only: bool = False) -> Expert:
    """What all kinds of work of one device teach of kinds that were not measured: its intervals and its error come from
    kinds held out in turn. Raises ValueError for fewer than 30 rows.
    """
    some = [_some(each, max(LEAST_ROWS, _MOST_OTHERS // len(shown))) for each in shown]
    device = shown[0].device
    facts, slowdown = np.concatenate([each.facts for each in some]), np.concatenate([each.slowdown for each in some])
    kind = np.repeat(np.arange(len(some)) % _MOST_KINDS, [len(each.facts) for each in some])
    whole = Shown(key=OTHERS_KEY, device=device, facts=facts, slowdown=slowdown)
    if kind.max() == 0:
        return replace(teach(whole, trees_only=True), inside=UNSEEN, outside=UNSEEN)
    values = features_of(OTHERS_KEY, facts, device)
    tries: dict[Way | None, Floats] = {}
    for way in WAYS if trees_only or len(values) > MOST_ROWS else (None, *WAYS):
        tries[way] = np.empty(len(values))
        for held_out in range(int(kind.max()) + 1):
            test = kind == held_out
            tries[way][test] = _missed(_learned(values[~test], slowdown[~test], way), values[test], slowdown[test])
    way = min(tries, key=lambda each: float(np.mean(np.abs(tries[each]))))
    interval = _quantiles(tries[way])
    return replace(
        teach(whole, trees_only=True),
        inside=interval,
        outside=interval,
        error=_error(tries[way]),
        main=_learned(values, slowdown, way),
        beyond=None,
    )


def _some(shown: Shown, count: int) -> Shown:
    chosen = np.sort(np.random.default_rng(0).permutation(len(shown.facts))[:count])
    return replace(shown, facts=shown.facts[chosen], slowdown=shown.slowdown[chosen])


def join(experts: Sequence[Expert], shown: Sequence[Shown]) -> Model:
    """A model of what each device taught; each in turn is predicted from the others, to learn how far off that is."""
    key = shown[0].key
    missed = []
    for each in shown:
        others = tuple(expert for expert in experts if expert.device != each.device.name)
        if others:
            rest = Model(key=key, experts=others, unseen=UNSEEN)
            some = np.random.default_rng(0).permutation(len(each.facts))[:_SOME]
            values = features_of(key, each.facts[some], each.device)
            missed.append(each.slowdown[some] - rest.blend(values, traits_of(each.device)))
    unseen = _quantiles(np.concatenate(missed)) if missed else UNSEEN
    # nobody is surer of a new device than of those that were shown
    low, high = min(expert.inside[0] for expert in experts), max(expert.inside[1] for expert in experts)
    return Model(key=key, experts=tuple(experts), unseen=(min(unseen[0], low), max(unseen[1], high)))


def _missed(learner: Learner, values: Floats, slowdown: Floats) -> Floats:
    """log(true / predicted)."""
    return slowdown - np.maximum(0.0, learner.predict(values))


def _error(missed: Floats) -> float:
    """Mean absolute percentage error of times, as a fraction."""
    return float(np.mean(np.abs(np.expm1(-missed))))


def _quantiles(missed: Floats) -> Interval:
    low, high = np.quantile(missed, _INTERVAL)
    return min(0.0, float(low)), max(0.0, float(high))
