"""Teaching: experts from measured work, the way of learning chosen and the errors found on rows held out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.prediction.fit.rows import Shown, joined
from rooflight.prediction.model.corrections import Interval
from rooflight.prediction.model.devices import (
    REACHED,
    averaged,
    blended,
    computing,
    device_traits,
    fewer_watts,
    likeness,
    reached_bandwidth,
    reached_products,
)
from rooflight.prediction.model.model import TWINS, Expert, Model, Spread
from rooflight.prediction.model.packing import Learner
from rooflight.prediction.model.smooth import MOST_ROWS, smooth
from rooflight.prediction.model.trees import WAYS, Leaves, Way, answers_of_grown, grow, grow_small, lone
from rooflight.prediction.work.facts import Floats, WorkKind, is_plain, key_of_others, kind_of
from rooflight.prediction.work.features import OPS, over_bound, steady_features
from rooflight.prediction.work.floors import usual_slowdown
from rooflight.records.quantity import count_of

LEAST_ROWS: Final = 12
"""Least number of measurements for an expert: fewer give no estimate of its error."""
FOLDS: Final = 3
UNSEEN: Final = (-0.7, 0.7)
"""A factor of two: what to expect of a new device when only one was ever seen."""
_ONE_MORE: Final = 0.6
"""As a logarithm: by how much a device may be missed that is like none of those left out in turn."""
_INTERVAL: Final = (0.05, 0.95)
_LARGEST_SHARE: Final = 0.2
_SOME: Final = 300  # rows of a device are enough to say how far off the others are
_ENOUGH: Final = 10_000  # rows from which to see how far off work is that is larger than any of them
_DETAILED: Final = 10_000  # rows of which trees for larger work may have many leaves too
_MOST_OTHERS: Final = 4000  # rows of all kinds together
_MOST_SMOOTH: Final = 1000  # rows that are worth keeping: trees of more are as good, and smaller
_COMPUTES: Final = 0.6  # compute time over that and memory time, from which work counts as arithmetic
_SAME_WATTS: Final = 0.05  # as a logarithm
_DOUBT: Final = 4  # pairs of devices without any effect that what was seen has to outweigh
_ENOUGH_FOR_SPREAD: Final = 200
_LEAST_MISSED: Final = 0.002  # what is missed by less is missed by nothing
_SMALL: Final = 0.1  # of the rows, by bound
_SLOW: Final = float(np.log(2.0))
_LEAST: Final = 0.001  # quantile
_GROWS: Final = 0.5  # the power of the bound
_KERNEL_S, _MOST_FLOOR_S = 5e-6, 100e-6  # no launch takes longer
_BETTER: Final = 0.99  # of what is missed
_WORTH_BYTES: Final = 0.97
"""Of what is missed, with four times as many leaves: 26,710 products on a T4, held out, are missed by 9.1 % anyway."""
_KIND_GROUPS: Final = 5  # of kinds of work, held out in turn


Rows = NDArray[np.bool_] | NDArray[np.int64]


def learn(shown: Sequence[Shown]) -> Model:
    """A model of work of one kind. Raises ValueError for a device with fewer than 12 rows."""
    return join([teach(each) for each in shown], shown)


def teach(shown: Shown, *, trees_only: bool = False, over_usual: bool = False, launch_s: float = 0.0) -> Expert:
    """What the rows of one device teach. The way of learning is the one that does best on rows held out, with
    ``trees_only`` none that keeps the shapes it learned from; intervals come from the same rows, and from the largest
    fifth by bound. ``over_usual``: how much slower than ``usual_slowdown``, with ``launch_s`` in the times. Raises
    ValueError for fewer than 12 rows.
    """
    if over_usual:
        shown = over(shown, launch_s)
    key, slowdown = shown.key, shown.slowdown
    if len(slowdown) < LEAST_ROWS:
        raise ValueError(
            f"{key}: {count_of(len(slowdown), 'row is', 'rows are')} too few to learn from, sample at least "
            f"{LEAST_ROWS}"
        )
    values = shown.features
    parts = _parts(len(values))
    floor_s = 0.0 if over_usual else _floor_s(key, values, slowdown, parts[0])
    above = slowdown - over_bound(key, values, floor_s)
    way, held_out = _best_way(values, above, parts, trees_only=trees_only)
    inside = quantiles(held_out)
    beyond, further = _for_larger(key, values, above, way)
    outside = min(inside[0], further[0]), max(inside[1], further[1])
    asked, true = (np.concatenate([each[test] for test in parts]) for each in (values, slowdown))
    # answers below the bound are raised to it, those of intervals are not
    raised = held_out if over_usual else np.minimum(held_out, true)
    learned = {"main": _learned(values, above, way), "beyond": beyond, "spread": spread_of(asked, held_out)}
    floors = {"floor_s": floor_s, "launch_s": launch_s}
    return _expert(shown, held_out, outside=outside, error=mean_error(raised), usual=over_usual, **learned, **floors)


def over(shown: Shown, launch_s: float) -> Shown:
    """How much slower than usual the rows were."""
    return replace(shown, slowdown=shown.slowdown - usual_slowdown(shown.key, shown.facts, shown.device, launch_s))


def _floor_s(key: str, values: Floats, slowdown: Floats, test: NDArray[np.bool_]) -> float:
    floor_s = least_floor_s(key, values, slowdown)
    if not floor_s:
        return 0.0
    above = slowdown - over_bound(key, values, floor_s)
    without, given = (float(np.mean(np.abs(_missed(values, each, WAYS[0], ~test, test)))) for each in (slowdown, above))
    return floor_s if given < _BETTER * without else 0.0


def least_floor_s(key: str, values: Floats, slowdown: Floats) -> float:
    """Seconds that each op takes beyond its bound, however small it is: the least of any small work (the lowest tenth
    by bound) that takes over twice its bound; 0 where small work takes less, and of collectives. Where the time of that
    tenth grows with its bound, no work is small enough to show a floor, and it is no more than a kernel's.
    """
    if kind_of(key) is WorkKind.NETWORK:
        return 0.0
    small = (values[:, 0] <= np.quantile(values[:, 0], _SMALL)) & (slowdown > _SLOW)
    if not small.any():
        return 0.0
    each_s = np.expm1(slowdown) * np.exp(values[:, 0]) / np.maximum(1.0, values[:, OPS])
    bound = values[small, 0] - values[small, 0].mean()
    grows = float((bound * (slowdown[small] + values[small, 0])).sum()) > _GROWS * float((bound**2).sum())
    return min(_KERNEL_S if grows else _MOST_FLOOR_S, float(np.quantile(each_s[small], _LEAST)))


def _expert(shown: Shown, held_out: Floats, **rest: Any) -> Expert:
    return Expert(**{**figures(shown.device, shown.features, held_out), **rest}, traits=device_traits(shown.device))


def figures(device: DeviceSpec, values: Floats, missed: Floats) -> dict[str, Any]:
    """What is said of all that is ``Learned``: from rows of features [rows, features], and what was ``missed`` of those
    held out.
    """
    low, high = values.min(axis=0), values.max(axis=0)
    inside, error = quantiles(missed), mean_error(missed)
    return {"device": device.name, "rows": len(values), "low": low, "high": high, "inside": inside, "error": error}


def spread_of(values: Floats, missed: Floats) -> Spread | None:
    """How far off predictions are, by features: from held-out rows of features [rows, features] and what was missed of
    each [rows]. None of too few rows to see any difference.

    Split conformal prediction with a scale (Lei et al., Distribution-Free Predictive Inference for Regression, 5.2):
    the scale is learned from one half of the rows, what 90 % of the others missed in units of it is counted, and the
    same with the halves exchanged.
    """
    if len(missed) < _ENOUGH_FOR_SPREAD:
        return None
    size = np.log(np.abs(missed) + _LEAST_MISSED)
    half = np.random.default_rng(3).permutation(len(missed)) % 2 == 0
    in_units = np.empty(len(missed))
    for one in (half, ~half):
        in_units[one] = missed[one] / np.exp(grow_small(values[~one], size[~one]).predict(values[one]))
    return Spread(size=grow_small(values, size), ends=quantiles(in_units))


def _for_larger(key: str, values: Floats, slowdown: Floats, way: Way | None) -> tuple[Learner | None, Interval]:
    """A learner for work larger than any shown, of products by how they look, otherwise as slow as the largest shown;
    None where ``way`` misses less of the largest fifth. And what is missed of that.
    """
    large = _largest(values)
    if not large.any() or large.all():
        return None, (0.0, 0.0)
    rest = np.flatnonzero(~large)
    some = np.random.default_rng(2).permutation(rest)[:_ENOUGH]
    from_all = _missed(values, slowdown, way, some, large)
    steady = list(steady_features(key))
    if steady:
        plain = way and replace(way, leaves=Leaves.MANY if len(values) > _DETAILED else Leaves.FEW)
        from_some = _missed(values[:, steady], slowdown, plain, some, large)
        if mean_error(from_some) < mean_error(from_all):
            return _learned(values[:, steady], slowdown, plain, coarse=True), quantiles(from_some)
    else:
        from_largest = slowdown[large] - np.median(slowdown[rest][_largest(values[rest])])
        if mean_error(from_largest) < mean_error(from_all):
            return lone(float(np.median(slowdown[large]))), quantiles(from_largest)
    return None, quantiles(from_all)


def _largest(values: Floats) -> NDArray[np.bool_]:
    """Which rows of features [rows, features] are the largest fifth by bound, of collectives by bytes sent."""
    return np.asarray(values[:, 0] >= np.quantile(values[:, 0], 1 - _LARGEST_SHARE))


def _parts(rows: int) -> list[NDArray[np.bool_]]:
    part = np.random.default_rng(0).permutation(rows) % FOLDS
    return [part == fold for fold in range(FOLDS if rows <= MOST_ROWS else 1)]


def _best_way(
    values: Floats, slowdown: Floats, parts: Sequence[NDArray[np.bool_]], *, trees_only: bool
) -> tuple[Way | None, Floats]:
    """None is smoothly, without trees. Of many rows, four times as many leaves have to be worth their bytes."""
    tried: dict[Way | None, Floats] = {}

    def missed_by(way: Way | None) -> float:
        tried[way] = np.concatenate([_missed(values, slowdown, way, ~test, test) for test in parts])
        return float(np.mean(np.abs(tried[way])))

    errors: dict[Way | None, float] = {way: missed_by(way) for way in WAYS if way.leaves is Leaves.MANY}
    best_loss = min(errors, key=errors.__getitem__)
    assert best_loss is not None
    if len(values) <= _DETAILED:
        few = replace(best_loss, leaves=Leaves.FEW)
        errors[few] = missed_by(few)
    else:
        most = replace(best_loss, leaves=Leaves.MOST)
        errors[most] = missed_by(most) / _WORTH_BYTES
    if len(values) <= _MOST_SMOOTH and not trees_only:
        errors[None] = missed_by(None)
    best = min(errors, key=errors.__getitem__)
    return best, tried[best]


def _learned(values: Floats, slowdown: Floats, way: Way | None, *, coarse: bool = False) -> Learner:
    return smooth(values, slowdown) if way is None else grow(values, slowdown, way, coarse=coarse)


def teach_others(shown: Sequence[Shown], *, trees_only: bool = False, launch_s: float = 0.0) -> Expert:
    """What kinds of work of one device that are alike teach of those that were not measured, over what is usual of
    kernels: its intervals and error come from kinds held out in turn. ``launch_s`` seconds of each time are a launch.
    Raises ValueError for fewer than 12 rows.
    """
    some = [each.sample(max(LEAST_ROWS, _MOST_OTHERS // len(shown))) for each in shown]
    group = np.repeat(np.arange(len(some)) % _KIND_GROUPS, [len(each) for each in some])
    whole = joined(some, key_of_others(shown[0].key))
    if group.max() == 0:
        alone = teach(whole, trees_only=True, over_usual=True, launch_s=launch_s)
        return replace(alone, inside=UNSEEN, outside=UNSEEN)
    whole = over(whole, launch_s)
    parts = [group == held_out for held_out in range(int(group.max()) + 1)]
    way, held_out = _best_way(whole.features, whole.slowdown, parts, trees_only=trees_only)
    main = _learned(whole.features, whole.slowdown, way)
    return _expert(whole, held_out, outside=quantiles(held_out), main=main, beyond=None, usual=True, launch_s=launch_s)


def with_reached(taught: Sequence[tuple[Expert, Shown]]) -> list[tuple[Expert, Shown]]:
    """Experts with the share of its roofs that each device reaches: of its bandwidth, where its file has no such fact,
    in the kind of work that wastes the least; of its matrix peaks in the products that its expert learned from.
    """
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for expert, shown in taught:
        traits = found[expert.device]
        if is_plain(shown.key, shown.facts) and device_traits(shown.device).get(REACHED) is None:
            reached = reached_bandwidth(shown.key, shown.slowdown, _largest(shown.facts))
            if reached is not None:
                traits[REACHED] = max(reached, traits.get(REACHED, reached))
        traits |= reached_products(shown.key, shown.features, shown.slowdown)
    return [(replace(expert, traits={**expert.traits, **found[expert.device]}), shown) for expert, shown in taught]


def join(experts: Sequence[Expert], shown: Sequence[Shown]) -> Model:
    """A model of what each device taught; each in turn is predicted from the others, to learn how far off that is."""
    key, usual = shown[0].key, all(expert.usual for expert in experts)
    if usual:
        shown = [over(each, expert.launch_s) for each, expert in zip(shown, experts, strict=True)]
    asked = [_asked(each, experts) for each in shown]
    missed = []
    for each in asked:
        others = [expert for expert in experts if expert.device != each.shown.device.name]
        # a new device has no twin among those that were measured: how far off it is, twins do not tell
        others = [one for one in others if likeness(each.traits, one.traits, key) < TWINS] or others
        if others:
            answers = [each.answers[expert.device] for expert in others]
            if usual:
                blend = averaged(key, others, answers, each.values, each.traits)
            else:
                power = _power([one for one in asked if one is not each], others)
                blend = blended(key, others, answers, each.values, each.traits, power)
            missed.append(each.shown.slowdown - blend)
    one_more = (_ONE_MORE, _ONE_MORE)
    unseen = with_doubt(quantiles(np.concatenate(missed)), one_more, len(missed)) if missed else UNSEEN
    # an interval for a new device is never narrower than those for most known devices
    low, high = (float(np.median([expert.inside[end] for expert in experts])) for end in (0, 1))
    return Model(
        key=key,
        experts=tuple(experts),
        unseen=(min(unseen[0], low), max(unseen[1], high)),
        power=0.0 if usual else _power(asked, experts),
    )


def with_doubt(seen: Interval, more: Interval, count: int) -> Interval:
    """What was missed of ``count`` rows or devices left out, widened as if one more had been missed by ``more``."""
    low, high = (float(np.hypot(end, doubt / np.sqrt(count))) for end, doubt in zip(seen, more, strict=True))
    return -low, high


class _Asked(NamedTuple):
    shown: Shown
    traits: Mapping[str, float]
    values: Floats
    answers: Mapping[str, Floats]


def _asked(shown: Shown, experts: Sequence[Expert]) -> _Asked:
    some = shown.some(np.random.default_rng(0).permutation(len(shown))[:_SOME])
    values = some.features
    answers = {each.device: each.predict(some.key, values) for each in experts if each.device != some.device.name}
    return _Asked(some, device_traits(some.device), values, answers)


def _power(asked: Sequence[_Asked], experts: Sequence[Expert]) -> float:
    """The weighted median over pairs of devices, drawn to 0 where there are few."""
    slopes, weights = [], []
    for each in asked:
        share = computing(each.shown.key, each.values)
        rows = share > _COMPUTES
        for expert in experts:
            fewer = fewer_watts(expert.traits, each.traits)
            if expert.device == each.shown.device.name or abs(fewer) < _SAME_WATTS or rows.sum() < LEAST_ROWS:
                continue
            missed = each.shown.slowdown[rows] - each.answers[expert.device][rows]
            slopes.append(float(np.median(missed / share[rows])) / fewer)
            weights.append(abs(fewer) * likeness(expert.traits, each.traits, each.shown.key))
    if not slopes:
        return 0.0
    order = np.argsort(slopes)
    total = np.cumsum(np.array(weights)[order])
    middle = slopes[int(order[int(np.searchsorted(total, total[-1] / 2))])]
    return min(1.0, max(0.0, middle)) * len(slopes) / (len(slopes) + _DOUBT)


def _missed(values: Floats, slowdown: Floats, way: Way | None, train: Rows, test: Rows) -> Floats:
    shown, target, asked = values[train], slowdown[train], values[test]
    answers = smooth(shown, target).predict(asked) if way is None else answers_of_grown(shown, target, way, asked)
    return slowdown[test] - answers


def mean_error(missed: Floats) -> float:
    """Mean absolute percentage error of times, as a fraction."""
    return float(np.mean(np.abs(np.expm1(-missed))))


def quantiles(missed: Floats) -> Interval:
    """Ends between which nine in ten lie, of as many rows as there are: of few, further out."""
    room = (1 - _INTERVAL[1]) / len(missed)
    low, high = np.quantile(missed, (max(0.0, _INTERVAL[0] - room), min(1.0, _INTERVAL[1] + room)))
    return min(0.0, float(low)), max(0.0, float(high))
