"""What rows of users' functions teach, whose FLOPs and bytes nobody knows: times by their parameters, or by features
that are declared for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Final

import numpy as np

from rooflight.prediction.fit.experts import LEAST_ROWS, mean_error, quantiles
from rooflight.prediction.fit.rows import grouped
from rooflight.prediction.lint.findings import Place, is_flagged
from rooflight.prediction.model.functions import Curve, Function, logs_of
from rooflight.prediction.model.smooth import smooth
from rooflight.prediction.read.measured import MeasuredTable
from rooflight.prediction.read.samples import is_sampled
from rooflight.prediction.work.facts import Floats

_FOLDS: Final = 5
_LARGEST: Final = 0.8  # share of the rows by size, above which they stand for work larger than sampled
_RIDGE: Final = 1e-3
_ROWS_A_PARAMETER: Final = 3


def learn_functions(
    tables: Iterable[MeasuredTable], flagged: Set[Place] = frozenset()
) -> tuple[tuple[Function, ...], dict[str, int]]:
    """Functions of the sampled tables whose operator nobody registered, each on its device in its precision; and the
    rows of those with too few shapes: fewer than 12, or than three for each parameter that varies.
    """
    functions: list[Function] = []
    few = {}
    ours = [table for table in tables if not table.known and is_sampled(table.source)]
    for group in grouped(ours, lambda each: (each.kernel, each.dtype, each.device.name, each.parameters)).values():
        learned = _learned(group, flagged)
        functions += learned
        if not learned:
            few[f"{group[0].kernel} {group[0].dtype} on {group[0].device.name}"] = sum(
                each.seconds.size for each in group
            )
    return tuple(functions), few


def _learned(group: Sequence[MeasuredTable], flagged: Set[Place]) -> list[Function]:
    first = group[0]
    shapes = np.concatenate([each.shapes for each in group])
    seconds = np.concatenate([np.where(is_flagged(each, flagged), np.nan, each.seconds) for each in group])
    taken = np.isfinite(seconds).all(axis=1)
    shapes, seconds = shapes[taken], seconds[taken]
    varying = int((shapes != shapes[:1]).any(axis=0).sum())
    if len(np.unique(shapes, axis=0)) < max(LEAST_ROWS, _ROWS_A_PARAMETER * varying):
        return []
    declared = [each.features for each in group if each.features is not None]
    ways = [np.eye(len(first.parameters)), *declared[:1]]
    found = []
    for powers in ways:
        logs = logs_of(shapes) @ powers.T
        curves = {way: curve_of(logs, times) for way, times in zip(first.directions, np.log(seconds).T, strict=True)}
        found.append(
            Function(
                name=first.kernel,
                device=first.device.name,
                dtype=first.dtype,
                parameters=first.parameters,
                low=tuple(shapes.min(axis=0).tolist()),
                high=tuple(shapes.max(axis=0).tolist()),
                powers=powers,
                rows=len(shapes),
                curves=curves,
            )
        )
    return [min(found, key=lambda each: sum(curve.error for curve in each.curves.values()))]


def curve_of(logs: Floats, times: Floats) -> Curve:
    """What rows of features [rows, features] and of times [rows], both logarithms, teach of one direction."""
    folds = np.random.default_rng(0).permutation(len(logs)) % _FOLDS
    missed = np.concatenate([_missed(logs, times, folds == fold) for fold in range(_FOLDS)])
    slope, offset, rest = _fitted(logs, times)
    rank = np.argsort(np.argsort(logs @ slope, kind="stable"))
    further = quantiles(_missed(logs, times, rank >= _LARGEST * len(logs)))
    inside = quantiles(missed)
    return Curve(
        offset=offset,
        slope=slope,
        rest=smooth(logs, rest, mean=0.0),
        error=mean_error(missed),
        inside=inside,
        outside=(min(inside[0], further[0]), max(inside[1], further[1])),
    )


def _fitted(logs: Floats, times: Floats) -> tuple[Floats, float, Floats]:
    """A power law by least squares, drawn to none by a small ridge, and what it leaves of each row."""
    middle = logs.mean(axis=0)
    apart = logs - middle
    slope = np.linalg.solve(apart.T @ apart + _RIDGE * np.eye(logs.shape[1]), apart.T @ times)
    offset = float(times.mean() - middle @ slope)
    return slope, offset, times - offset - logs @ slope


def _missed(logs: Floats, times: Floats, test: np.ndarray) -> Floats:
    slope, offset, rest = _fitted(logs[~test], times[~test])
    return np.asarray(
        times[test] - offset - logs[test] @ slope - smooth(logs[~test], rest, mean=0.0).predict(logs[test])
    )
