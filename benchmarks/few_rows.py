"""Errors of devices left out of the shipped models, of which a few rows are then taken into account: part ``few`` of
``prediction_scores.py``.

Each device is left out of the shipped models in turn. Of the rows that part ``unseen`` scores (1,000 of a kind at
most), 5 or 20 of each kind of the table are given to ``rooflight fit --on``: chosen at random, or by the rule of
``rooflight sample smart`` among 200 of them, as if each took as long. All others are scored: raw times, five seeds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from shipped_rows import NEUSIGHT, Rows

from rooflight.prediction.fit.experts import join
from rooflight.prediction.fit.few_rows import refine, units_of
from rooflight.prediction.fit.rows import Shown
from rooflight.prediction.model.model import Answer, Model
from rooflight.prediction.predictor import Predictor
from rooflight.prediction.work.features import features_of
from rooflight.sampling.smart_sweep import Points, most_informative

COUNTS = (5, 20)
SEEDS = 5
MOST_ROWS = 1000
POOL = 200
Floats = NDArray[np.float64]
Places = NDArray[np.int64]
Asked = Callable[[Rows], Sequence[tuple[str, NDArray[np.bool_]]]]
Choice = Callable[[Points, int, np.random.Generator], Places]


def at_random(points: Points, count: int, rng: np.random.Generator) -> Places:
    return rng.permutation(len(points))[:count]


def smartly(points: Points, count: int, rng: np.random.Generator) -> Places:
    """By the rule of the smart sweep, among some rows."""
    pool = rng.permutation(len(points))[:POOL]
    chosen: list[int] = []
    candidates = Points(places=points.places[pool], views=points.views[pool])
    for _ in range(min(count, len(pool))):
        sampled = Points(places=candidates.places[chosen], views=candidates.views[chosen])
        use = np.ones(len(pool))
        seconds = np.where(np.isin(np.arange(len(pool)), chosen), 1e9, 1.0)
        chosen.append(most_informative(sampled, candidates, use, seconds))
    return pool[chosen]


CHOICES: Mapping[str, Choice] = {"random": at_random, "smart": smartly}


def without(model: Model, device: str, data: Mapping[tuple[str, str], Rows]) -> Model | None:
    """A shipped model as if one of its devices had not been measured."""
    experts = [expert for expert in model.experts if expert.device != device]
    shown = [data[model.key, each.device] for each in experts if (model.key, each.device) in data]
    if not experts or not shown:
        return None
    return join(experts, [each.shown(np.ones(len(each.slowdown), dtype=bool), 300) for each in shown])


def few(
    data: Mapping[tuple[str, str], Rows], asked: Asked, devices: Sequence[str]
) -> dict[str, dict[str, dict[str, float]]]:
    """By kind and device: the error without rows, and with some chosen either way, and what 90 % intervals hold."""
    parts: dict[str, dict[str, dict[str, list[float]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    predictor = Predictor()
    for (key, device), rows in data.items():
        shipped = predictor.model(key)
        wanted = list(asked(rows))
        if shipped is None or not wanted or (devices and device not in devices):
            continue
        model = without(shipped, device, data)
        if model is None:
            continue
        studies: dict[bool, list[tuple[str, Shown]]] = defaultdict(list)
        for kind, which in wanted:
            # rows of one source are fitted together
            studies[bool((rows.studies[which] == NEUSIGHT).any())].append((kind, rows.shown(which, MOST_ROWS)))
        for group in studies.values():
            for kind, found in _scored(model, group):
                for name, figure in found.items():
                    parts[kind][device][name].append(figure)
    return {
        kind: {device: {name: float(np.mean(each)) for name, each in found.items()} for device, found in by.items()}
        for kind, by in parts.items()
    }


@dataclass(frozen=True, kw_only=True)
class _Known:
    """Rows with what the model without them answers, each model's distance from that, and the rows as points."""

    shown: Shown
    values: Floats
    base: Answer
    apart: Floats
    points: Points

    @classmethod
    def of(cls, model: Model, shown: Shown) -> _Known:
        values, unit = features_of(model.key, shown.facts, shown.device), units_of(model)
        base, used = model.unrefined(shown.facts, values, shown.device), unit > 0
        apart = model.apart(values, base.slowdown)
        # by features in place of the sizes that the sweep has
        points = Points(places=values[:, used] / unit[used], views=apart)
        return cls(shown=shown, values=values, base=base, apart=apart, points=points)


def _scored(model: Model, group: Sequence[tuple[str, Shown]]) -> list[tuple[str, dict[str, float]]]:
    known = [_Known.of(model, shown) for _, shown in group]
    found = [
        (kind, _figures(each.base, shown, np.arange(len(shown.slowdown)), "none"))
        for (kind, shown), each in zip(group, known, strict=True)
    ]
    for count, how, seed in product(COUNTS, CHOICES, range(SEEDS)):
        rng = np.random.default_rng(seed)
        chosen = [CHOICES[how](each.points, count, rng) for each in known]
        parts = [(each.shown.facts[some], each.shown.slowdown[some]) for each, some in zip(known, chosen, strict=True)]
        facts, slowdown = (np.concatenate(each) for each in zip(*parts, strict=True))
        refinement = refine(model, Shown(key=model.key, device=group[0][1].device, facts=facts, slowdown=slowdown))
        for (kind, shown), each, some in zip(group, known, chosen, strict=True):
            others = np.setdiff1d(np.arange(len(shown.slowdown)), some)
            answer = model.refined(refinement, each.values, each.base, each.apart)
            found.append((kind, _figures(answer, shown, others, f"{how} {count}")))
    return found


def _figures(answer: Answer, shown: Shown, which: Places, name: str) -> dict[str, float]:
    true, predicted = shown.slowdown[which], np.maximum(0.0, answer.slowdown[which])
    holds = (np.maximum(0.0, answer.low[which]) <= true) & (true <= answer.high[which])
    error = np.abs(np.expm1(predicted - true))
    return {f"{name} error": float(100 * error.mean()), f"{name} holds": float(100 * holds.mean())}


def markdown(table: Mapping[str, Mapping[str, Mapping[str, float]]], kinds: Sequence[str]) -> list[str]:
    """Means over devices of each choice."""
    names = ["none", *(f"{how} {count}" for count in COUNTS for how in CHOICES)]
    lines = ["| kind | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    kinds = [kind for kind in kinds if kind in table]
    for kind in kinds:
        cells = []
        for name in names:
            error, holds = (
                np.mean([each[f"{name} {what}"] for each in table[kind].values()]) for what in ("error", "holds")
            )
            cells.append(f"{error:.1f} % ({holds:.0f} %)")
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return lines
