"""Regimes: what a step, its phases and its layers spend their time on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.diagnosis.draft import Facts
from rooflight.records.measurement import Float64
from rooflight.records.record import Direction, outside_modules, phase_name
from rooflight.records.session import Int64
from rooflight.records.timeline import Within
from rooflight.roofline.bound import Limiter
from rooflight.roofline.distinct import distinct
from rooflight.roofline.findings import Regime, RegimeShare

_OF_LIMITER: Final = {Limiter.COMPUTE: Regime.COMPUTE, Limiter.NETWORK: Regime.COMMUNICATION}
_SMALL: Final = 8.0
_LITTLE_S: Final = 2e-6
_INTENSE: Final = 150  # FLOPs per byte: about where GPUs' roofs meet
_MOST_LAYERS: Final = 12


def shares_of(facts: Facts) -> Mapping[Regime, float]:
    """The share of each regime in a step; they sum to 1."""
    of = facts.of
    (seconds,) = _by_regime(facts, np.zeros(len(of.records), dtype=np.int64), 1)
    idle = of.idle
    if idle is not None:
        waits_s = idle.data_loader_s + idle.pageable_copy_s + idle.sync_s + idle.driver_s
        seconds[Regime.IDLE] += waits_s
        seconds[Regime.COMMUNICATION] += idle.rank_s
        seconds[Regime.OVERHEAD] += idle.host_late_s + idle.launch_s
    elif of.on_cpu and of.analysis.totals.measured_s:
        waits_s = max(of.asleep_s, of.in_library(Within.LOADER, Within.STARTING, Within.PROCESS)[0])
        exchange_s = max(0.0, of.in_library(Within.COLLECTIVES)[0] - seconds[Regime.COMMUNICATION])
        gaps_s = of.long_gaps_s if of.measured else waits_s + exchange_s
        seconds[Regime.IDLE] += min(waits_s, gaps_s)
        seconds[Regime.COMMUNICATION] += exchange_s
        seconds[Regime.OVERHEAD] += max(0.0, gaps_s - waits_s - exchange_s)
    for each in of.session.run.between if of.session.run is not None else ():
        seconds[Regime.IDLE] += each.seconds * float(each.name == "loader")
    total = sum(seconds.values())
    return {regime: each / total if total else 0.0 for regime, each in seconds.items()}


def _by_regime(facts: Facts, group: Int64, count: int) -> list[dict[Regime, float]]:
    """Seconds of calls of each of ``count`` groups: their overhead, and their work by what limits it. ``group`` is that
    of each call.
    """
    of, regimes = facts.of, list(Regime)
    places = group * len(regimes) + _regimes(facts)
    found = np.bincount(places, _work_s(facts), count * len(regimes)).astype(np.float64).reshape(count, len(regimes))
    if of.on_cpu:
        found[:, regimes.index(Regime.OVERHEAD)] += np.bincount(group, of.overhead_s, count)
    elif of.idle is None:
        found[:, regimes.index(Regime.OVERHEAD)] += np.maximum(0.0, np.bincount(group, of.host_s - of.seconds, count))
    return [dict(zip(regimes, each, strict=True)) for each in found.tolist()]


def _work_s(facts: Facts) -> Float64:
    of = facts.of
    if of.exposed_s is not None and of.exposed_s < (sent_s := float(of.seconds[of.collectives].sum())):
        return np.where(of.collectives, of.seconds * (of.exposed_s / sent_s), of.seconds)
    return np.maximum(of.seconds - of.floor_s, 0.0) if of.on_cpu else of.seconds


def _regimes(facts: Facts) -> Int64:
    """What limits each call, by its place among the regimes."""
    of, regimes = facts.of, list(Regime)
    limiters = [regimes.index(_regime_of(*each)) for each in zip(of.limiters, of.analysis.costs, strict=True)]
    # a call far above its bound is as small as its dispatch if that, or its work, is little
    small = (of.seconds < _SMALL * of.floor_s) | (of.bound_s < _LITTLE_S)
    small &= (of.bound_s < 0.1 * of.seconds) & of.on_cpu
    found = np.array(limiters, dtype=np.int64)[of.signature]
    found[small] = regimes.index(Regime.OVERHEAD)
    found[of.collectives] = regimes.index(Regime.COMMUNICATION)
    return found


def _regime_of(limiter: Limiter | None, cost: OpCost | Uncosted) -> Regime:
    """What limits an op; where no roof is known, by its FLOPs per byte."""
    if limiter in _OF_LIMITER:
        return _OF_LIMITER[limiter]
    if limiter in (None, Limiter.NOTHING) and isinstance(cost, OpCost) and cost.bytes_moved:
        return Regime.COMPUTE if cost.matrix_flops > _INTENSE * cost.bytes_moved else Regime.MEMORY
    return Regime.MEMORY


def phases_of(facts: Facts) -> tuple[RegimeShare, ...]:
    """The regime of each phase: a named one, or forward, backward and optimizer."""
    of, session = facts.of, facts.of.session
    others = any(session.phases)
    columns = session.columns
    pairs = columns.phase[of.records].astype(np.int64) * len(Direction) + of.direction
    found, group, _ = distinct(pairs)
    names = [
        phase_name(session.phases[pair // len(Direction)], Direction(pair % len(Direction)), others=others)
        for pair in found.tolist()
    ]
    return tuple(_shares(facts, names, group))


def layers_of(facts: Facts) -> tuple[RegimeShare, ...]:
    """The regime of each class of module, those with most time first."""
    of, session = facts.of, facts.of.session
    names: dict[str, int] = {}
    outside = outside_modules(Direction.FORWARD)
    of_module = [names.setdefault(module.class_name or outside, len(names)) for module in session.modules]
    group = np.array(of_module, dtype=np.int64)[of.module]
    return tuple(sorted(_shares(facts, list(names), group), key=lambda each: -each.seconds)[:_MOST_LAYERS])


def _shares(facts: Facts, names: Sequence[str], group: Int64) -> Iterable[RegimeShare]:
    for name, seconds in zip(names, _by_regime(facts, group, len(names)), strict=True):
        total = sum(seconds.values())
        regime = max(seconds, key=lambda each: seconds[each])
        if total:
            yield RegimeShare(name=name, seconds=total, regime=regime, confidence=seconds[regime] / total)
