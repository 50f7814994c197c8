"""Joining: what the ops of sessions and traces teach beside tables, few rows of each kind of work on a device.

Rows of a kind and device that tables taught correct that expert. Others make an expert of their own, or correct what
the experts of other devices answer, whichever is less off on rows held out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from rooflight.prediction.correction import Correction, correction
from rooflight.prediction.facts import is_plain
from rooflight.prediction.features import features_of
from rooflight.prediction.floors import with_launch
from rooflight.prediction.model import Expert, Model
from rooflight.prediction.teaching import LEAST_ROWS, UNSEEN, Shown, teach

ENOUGH_ALONE: Final = 40
"""Rows from which a device may have an expert of its own where tables of others taught the kind of work."""


def as_tables_time(beside: Iterable[Shown], launches: Mapping[str, float]) -> list[Shown]:
    """Rows of sessions as the tables of their device have them: with ``launches`` [seconds] inside, by device."""
    return [_with_launch(each, launches.get(each.device.name, 0.0)) for each in beside]


def _with_launch(shown: Shown, launch_s: float) -> Shown:
    if not launch_s:
        return shown
    bound_s = shown.facts[:, 0]
    return replace(shown, slowdown=np.log(with_launch(bound_s * np.exp(shown.slowdown), launch_s) / bound_s))


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
        (shown, tuple(taught.get(shown.key, ())), launches.get(shown.device.name, 0.0), trees_only)
        for shown in beside
        if len(shown.facts) >= LEAST_ROWS and shown.device.name not in _devices(taught.get(shown.key, ()))
    ]
    return [(expert, shown) for expert, (shown, *_) in zip(run(_expert_beside, asked), asked, strict=True) if expert]


def _devices(experts: Iterable[Expert]) -> set[str]:
    return {each.device for each in experts}


def _expert_beside(job: tuple[Shown, tuple[Expert, ...], float, bool]) -> Expert | None:
    """What the rows teach of a device; None where what others' experts answer, corrected, is less off."""
    shown, others, launch_s, trees_only = job
    plain = not others and is_plain(shown.key, shown.facts)
    if others and len(shown.facts) < ENOUGH_ALONE:
        return None
    own = replace(teach(shown, trees_only=trees_only, over_usual=plain, launch_s=launch_s), launch_s=launch_s)
    if not others:
        return own
    found = correction_beside(Model(key=shown.key, experts=others, unseen=UNSEEN), shown, trees_only=trees_only)
    return None if found is not None and found.error < own.error else own


def corrected(model: Model, beside: Iterable[Shown], *, trees_only: bool) -> Model:
    """The model with what the rows of its kind of work teach of its answers, a correction for each of their devices."""
    found = [correction_beside(model, shown, trees_only=trees_only) for shown in beside]
    kept = sorted((each for each in found if each is not None), key=lambda each: each.device)
    return replace(model, corrections=tuple(kept))


def correction_beside(model: Model, shown: Shown, *, trees_only: bool) -> Correction | None:
    """How far off a model is on the rows of a device, if that can be told; with ``trees_only`` by one factor. Rows that
    the device's own expert knows are left aside: what taught it is told no better by a few others.
    """
    values = features_of(shown.key, shown.facts, shown.device)
    missed = np.maximum(0.0, shown.slowdown) - model.uncorrected(shown.facts, shown.device)
    if (own := model.expert(shown.device)) is not None:
        strange = ~own.knows(shown.key, values)
        values, missed = values[strange], missed[strange]
    return correction(shown.device, values, missed, factor_only=trees_only, fades=own is not None)
