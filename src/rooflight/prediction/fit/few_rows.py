"""Few rows: what they teach beside tables, and on top of a model.

Ops of sessions and traces are few of each kind of work. Where tables taught a kind and device, they correct that
expert. Others make an expert of their own, or correct what the experts of other devices answer, whichever is less off
on rows held out.

On top of a model (``refine``): one offset for fewer than FEWEST rows; for more, Gaussian processes over the features
and over the distances of the experts' answers from the model's, one for each length scale, noise and share of the
experts, averaged by their likelihood (Rasmussen and Williams, Gaussian Processes for Machine Learning, 5.4). Rows are
left out in closed form (5.4.2 there), all of one group at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, Final

import numpy as np

from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.prediction.fit.experts import LEAST_ROWS, UNSEEN, figures, mean_error, quantiles, teach, with_doubt
from rooflight.prediction.fit.rows import Shown
from rooflight.prediction.model.corrections import (
    ENOUGH_FOR_PLACES,
    LENGTHS,
    MOST_POINTS,
    Correction,
    Process,
    Refinement,
    shortest,
)
from rooflight.prediction.model.model import Expert, Model
from rooflight.prediction.model.smooth import Smooth, distances, lone_point, matern, smooth
from rooflight.prediction.work.facts import Floats, Integers, is_plain
from rooflight.prediction.work.features import names_of
from rooflight.prediction.work.floors import least_kernel_s

ENOUGH_ALONE: Final = 40
"""Rows from which a device may have an expert of its own where tables of others taught the kind of work."""
FEWEST_CORRECTED: Final = 5
"""Least number of measurements for a factor."""
FARTHEST: Final = 2.0
"""As a logarithm, how far off a row is taken to be at most: one broken row must not settle the others."""
_CORRECTION_DOUBT: Final = 3.0  # rows without any effect that what was seen has to outweigh
_FOLDS: Final = 5


def experts_beside(
    beside: Sequence[Shown],
    taught: Mapping[str, Sequence[Expert]],
    launches: Mapping[str, float],
    run: Callable[..., Iterable[Any]],
    *,
    trees_only: bool,
) -> list[tuple[Expert, Shown]]:
    """Experts that sessions teach of kinds of work on devices of which tables ``taught`` none (experts by kind)."""
    asked = [
        each
        for each in beside
        if len(each) >= LEAST_ROWS and each.device.name not in {one.device for one in taught.get(each.key, ())}
    ]
    others = [tuple(taught.get(each.key, ())) for each in asked]
    launches_s = [launches.get(each.device.name, 0.0) for each in asked]
    found = run(partial(_expert_beside, trees_only=trees_only), asked, others, launches_s)
    return [(expert, shown) for expert, shown in zip(found, asked, strict=True) if expert]


def _expert_beside(shown: Shown, others: Sequence[Expert], launch_s: float, *, trees_only: bool) -> Expert | None:
    plain = not others and is_plain(shown.key, shown.facts)
    if others and len(shown) < ENOUGH_ALONE:
        return None
    own = replace(teach(shown, trees_only=trees_only, over_usual=plain, launch_s=launch_s), launch_s=launch_s)
    if not others:
        return own
    model = Model(key=shown.key, experts=tuple(others), unseen=UNSEEN)
    found = correction_beside(model, shown, trees_only=trees_only)
    return None if found is not None and found.error < own.error else own


def corrected(model: Model, beside: Iterable[Shown], *, trees_only: bool) -> Model:
    """The model with what the rows of its kind of work teach of its answers, a correction for each of their devices."""
    found = [correction_beside(model, shown, trees_only=trees_only) for shown in beside]
    return replace(model, corrections=tuple(sorted(filter(None, found), key=lambda each: each.device)))


def correction_beside(model: Model, shown: Shown, *, trees_only: bool) -> Correction | None:
    """How far off a model is on the rows of a device, if that can be told; with ``trees_only`` by one factor. Rows that
    the device's own expert knows are left aside: what taught it is told no better by a few others.
    """
    values = shown.features
    missed = np.maximum(0.0, shown.slowdown) - model.uncorrected(shown.facts, shown.device)
    if (own := model.expert(shown.device)) is not None:
        strange = ~own.knows(shown.key, values)
        values, missed = values[strange], missed[strange]
    return correction(shown.device, values, missed, factor_only=trees_only, fades=own is not None)


def correction(
    device: DeviceSpec, values: Floats, missed: Floats, *, factor_only: bool = False, fades: bool = False
) -> Correction | None:
    """What rows of features [rows, features] teach of which log(true / answered) is ``missed`` [rows]; None of fewer
    than 5, and where the answers held out are no better for it. ``factor_only`` keeps no row; where the correction
    ``fades``, it is nothing far from all rows.
    """
    if len(missed) < FEWEST_CORRECTED or (factor_only and fades):
        return None
    part = np.random.default_rng(0).permutation(len(missed)) % _FOLDS
    ways = [False] * (not fades) + [True] * (not factor_only and (fades or len(missed) >= ENOUGH_FOR_PLACES))
    held_out = {way: np.empty(len(missed)) for way in ways}
    for way, left in held_out.items():
        for fold in range(_FOLDS):
            out = part == fold
            left[out] = missed[out] - _nearby(values[~out], missed[~out], way, fades).predict(values[out], fades=True)
    best = min(held_out, key=lambda way: float(np.abs(held_out[way]).mean()))
    left = held_out[best]
    if np.abs(left).mean() >= np.abs(missed).mean():
        return None
    return Correction(**figures(device, values, left), near=_nearby(values, missed, best, fades))


def _nearby(values: Floats, missed: Floats, places: bool, fades: bool) -> Smooth:
    target = np.clip(missed, -FARTHEST, FARTHEST)
    factor = 0.0 if fades else float(np.median(target)) * len(target) / (len(target) + _CORRECTION_DOUBT)
    return smooth(values, target, mean=factor) if places else lone_point(values.shape[1], factor)


FEWEST: Final = 5
"""Rows from which there is more to learn than an offset."""
_DOUBT: Final = 2.0
"""Groups of rows without any offset that those few have to outweigh."""
_NOISES: Final = (0.003, 0.01, 0.05, 0.2, 0.6)
_SHARES: Final = (0.0, 10.0, 100.0)
"""Variances of the noise, and of what each expert adds for being a unit apart from the model, over the process's."""
_RANGES: Final = 4.0
"""Into how many units the range that all experts learned from is divided, by feature."""
_LEAST_RANGE: Final = 1e-6
_UNLIKE: Final = "filled"
"""What the features that tell kernels apart begin with: a few rows say nothing of them."""
_ALIKE: Final = 1e-6


def refine(model: Model, shown: Shown, *, groups: Integers | None = None, launch_s: float = 0.0) -> Refinement:
    """What rows of a device teach on top of a model, which may have an expert for it, or be one of several kinds of
    work. ``groups`` [rows]: rows to leave out together; without, all rows of one shape. Earlier refinements by rows of
    this device are left aside.

    Of an offset, what the processes add to it, and nothing at all, it is what misses rows left out the least, and
    nothing where their mean error would grow.
    """
    bare = unrefined(model, shown.device.name)
    values = shown.features
    answer = bare.unrefined(shown.facts, values, shown.device)
    least_s = least_kernel_s(shown.device)
    missed = shown.slowdown - np.maximum(answer.slowdown, shortest(shown.key, values, least_s))
    if groups is None:
        groups = np.unique(values, axis=0, return_inverse=True)[1].reshape(-1)
    around = float(np.median(answer.low - answer.slowdown)), float(np.median(answer.high - answer.slowdown))
    offset, process, left = 0.0, None, missed
    offset_left = _offsets_left_out(missed, groups)
    if _size(offset_left) <= _size(left):  # equal of one shape: nothing is left to say otherwise
        offset, left = _offset(missed, groups), offset_left
    if len(np.unique(values, axis=0)) >= FEWEST:
        learned = _learned(bare, shown.device.name, values, answer.slowdown, missed, groups)
        if _size(learned[-1]) < _size(left):
            offset, process, left = learned
    if mean_error(left) > mean_error(missed):  # nearer to most rows, and further from all
        offset, process, left = 0.0, None, missed
    inside = with_doubt(quantiles(left), around, len(np.unique(groups)))
    return Refinement(
        **{**figures(shown.device, values, left), "inside": inside},
        outside=(min(inside[0], around[0]), max(inside[1], around[1])),
        error_before=mean_error(missed),
        offset=offset,
        floor=min(0.0, float(missed.min())),
        ceiling=max(0.0, float(missed.max())),
        process=process,
        launch_s=launch_s,
        least_s=least_s,
        kind="" if shown.key == model.key else shown.key,
    )


def unrefined(model: Model, device: str) -> Model:
    """A model without what rows of this device taught on top of it."""
    return replace(model, refinements=tuple(each for each in model.refinements if each.device != device))


def _size(missed: Floats) -> float:
    return float(np.mean(np.abs(missed)))


def _offset(missed: Floats, groups: Integers) -> float:
    """The middle of what was missed, drawn to 0 where that are few groups of rows."""
    count = len(np.unique(groups))
    return float(np.median(missed)) * count / (count + _DOUBT) if count else 0.0


def _offsets_left_out(missed: Floats, groups: Integers) -> Floats:
    offsets = {group: _offset(missed[groups != group], groups[groups != group]) for group in np.unique(groups).tolist()}
    return np.array([each - offsets[group] for each, group in zip(missed, groups.tolist(), strict=True)])


def _learned(
    model: Model, device: str, values: Floats, answered: Floats, missed: Floats, groups: Integers
) -> tuple[float, Process, Floats]:
    """What they miss is of the rows that did not teach them, or, where there are none, of rows left out."""
    some = np.sort(np.random.default_rng(0).permutation(len(missed))[:MOST_POINTS])
    apart = np.empty((len(values), 0)) if device in model.devices else model.apart(values, answered)
    offset, process, left_out = _of_points(model, values[some], apart[some], missed[some], groups[some])
    if len(some) < len(missed):
        others = np.setdiff1d(np.arange(len(missed)), some)
        left_out = missed[others] - offset - process.predict(values[others], apart[others])
    return offset, process, left_out


def _of_points(
    model: Model, values: Floats, apart: Floats, missed: Floats, groups: Integers
) -> tuple[float, Process, Floats]:
    unit = units_of(model)
    used = unit > 0
    points = np.divide(values, unit, out=np.zeros_like(values), where=used)
    distance = distances(points[:, used], points[:, used]) / np.sqrt(max(1, used.sum()))
    alike = apart @ apart.T / max(1, apart.shape[1])
    likelihoods, weights, left_out = [], [], []
    ways = list(product(range(len(LENGTHS)), _NOISES, _SHARES if apart.shape[1] else (0.0,)))
    for place, noise, share in ways:
        kernel = matern(distance / LENGTHS[place]) + 1.0 + share * alike + noise * np.eye(len(missed))
        inverse = np.linalg.inv(kernel)
        weight = inverse @ missed
        signal = max(float(missed @ weight) / len(missed), _ALIKE)
        likelihoods.append(-0.5 * len(missed) * np.log(signal) - 0.5 * float(np.linalg.slogdet(kernel)[1]))
        weights.append(weight)
        left_out.append(_left_out(inverse, weight, groups))
    chance = np.exp(np.array(likelihoods) - max(likelihoods))
    chance /= chance.sum()
    by_length = np.zeros((len(LENGTHS), len(missed)))
    views = np.zeros(apart.shape[1])
    for (place, _, share), part, weight in zip(ways, chance, weights, strict=True):
        by_length[place] += part * weight
        views += part * share * (apart.T @ weight) / max(1, apart.shape[1])
    process = Process(
        unit=unit,
        points=_rounded(points),
        weight=_rounded(by_length),
        views=_rounded(views),
        seen=np.stack([apart.min(axis=0), apart.max(axis=0)], axis=1) if apart.size else np.empty((0, 2)),
    )
    return float(by_length.sum()), process, chance @ np.stack(left_out)


def units_of(model: Model) -> Floats:
    """By feature, a part of the range that the experts learned from; 0 for features that do not count."""
    low = np.min([expert.low for expert in model.experts], axis=0)
    high = np.max([expert.high for expert in model.experts], axis=0)
    plain = np.array([not name.startswith(_UNLIKE) for name in names_of(model.key)])
    return np.where(plain & (high - low > _LEAST_RANGE), (high - low) / _RANGES, 0.0)


def _left_out(inverse: Floats, weight: Floats, groups: Integers) -> Floats:
    if len(np.unique(groups)) == len(groups):
        return np.asarray(weight / np.diag(inverse))
    found = np.empty(len(weight))
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        found[rows] = np.linalg.solve(inverse[np.ix_(rows, rows)], weight[rows])
    return found


def _rounded(numbers: Floats) -> Floats:
    """As a file keeps them, so that a model answers alike before and after."""
    return numbers.astype(np.float32).astype(np.float64)
