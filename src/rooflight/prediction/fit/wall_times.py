"""What the wall times of whole steps tell: what launches cost on a host, and how long ops took that were not timed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import exp, log
from typing import Final

import numpy as np

from rooflight.costs.registry import cost_of
from rooflight.records.measurement import Float64, Measurement
from rooflight.records.quantity import Quantity, count_of
from rooflight.records.session import Session
from rooflight.records.timeline import DeviceTime, Launches, Timeline
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.host import TYPICAL, Host, units_of
from rooflight.roofline.predicted import Queue, queue_of

LEAST: Final = 3
"""Least number of programs: of fewer, one that is limited by its device would settle a host that nobody saw."""
_LAUNCH_S: Final = (2e-7, 5e-4)
_STEPS: Final = 160
_INTERVAL: Final = (0.05, 0.95)
_WIDEST_IN: Final = (0.75, 1.35)
"""An interval is never narrower than this: few programs agree by chance."""
_TYPICAL_WEIGHT: Final = 0.02  # error that an e-fold away from a typical host has to save
_CLAMP: Final = log(3.0)  # one program that the device's models are wrong about must not settle the host
LEAST_GAPS: Final = 20
"""Least number of ops of a trace."""
_MOSTLY_BUSY: Final = 0.5
"""Share of a step: where the device is busy for longer, ops wait for it, and their starts say nothing of the host."""
_PROFILED: Final = 0.35  # of an op's host time under a profiler, without it: one that notes shapes triples it
_LONGEST_GAP: Final = 20.0  # times the median: a host that waited


def fit_host(programs: Iterable[tuple[Analysis, float]] | Session) -> Host:
    """The host of a machine, from programs measured there: pairs of an analysis with predicted times (``rl.analyze(...,
    predictor=...)``) and the measured wall time of an eager step in seconds. Five small programs are enough, at
    least three must be; some must be limited by the host, with many small ops. The launch time is that with the least
    mean absolute error of the logarithm of the wall times.

    Or from a session that ``rl.read_trace`` made of an eager program: from the times between the starts of its ops'
    work, or, where the device was busy for most of the time, from the host's time in the ops that launched. A profiler
    makes both longer than they are without it.

    Raises ValueError for fewer programs, times that are not positive, analyses without predictions or for a CPU, a
    session without the starts of its ops, and a trace in which graphs were replayed.
    """
    if isinstance(programs, Session):
        return _from_trace(programs)
    given = list(programs)
    if len(given) < LEAST:
        raise ValueError(f"{count_of(len(given), 'program')} for a host: measure at least {LEAST}, five are better")
    queues, device_s, walls = [], [], []
    for analysis, wall_s in given:
        if analysis.device.kind == "cpu" or not analysis.predicts:
            raise ValueError("fit_host takes analyses for a GPU with predicted times: rl.analyze(..., predictor=...)")
        if not (np.isfinite(wall_s) and wall_s > 0):
            raise ValueError(f"a wall time of {wall_s} s: give the seconds of one eager step")
        queues.append(analysis.queue)
        device_s.append(analysis.predicted_op_s)
        walls.append(float(wall_s))
    launch_s = _least_off(queues, device_s, np.array(walls))
    found = Host.of(launch_s)
    off = np.log(np.array(walls)) - _log_walls(queues, device_s, found)
    least, most = (float(np.clip(end, -_CLAMP, _CLAMP)) for end in np.quantile(off, _INTERVAL))
    low, high = min(_WIDEST_IN[0], exp(least)), max(_WIDEST_IN[1], exp(most))
    return replace(found, low=low, high=high, source=f"fitted from {count_of(len(given), 'program')}")


def _least_off(queues: Sequence[Queue], device_s: Sequence[Float64], walls: Float64) -> float:
    tried = np.geomspace(*_LAUNCH_S, _STEPS)
    missed = [
        np.minimum(_CLAMP, np.abs(np.log(walls) - _log_walls(queues, device_s, Host.of(launch_s)))).mean()
        for launch_s in tried
    ]
    away = _TYPICAL_WEIGHT * np.abs(np.log(tried / TYPICAL.launch_s))
    return float(tried[int(np.argmin(np.array(missed) + away))])


def _log_walls(queues: Sequence[Queue], device_s: Sequence[Float64], host: Host) -> Float64:
    return np.log([queue.wall_s(seconds, host) for queue, seconds in zip(queues, device_s, strict=True)])


def _from_trace(session: Session) -> Host:
    measurement = session.measurement
    if measurement is None or not len(measurement.op_starts_s) or session.environment.get("device_kind") == "cpu":
        raise ValueError("a session without the starts of a GPU's ops: read it from a trace, or give measured programs")
    timeline = measurement.timeline
    launches = None if timeline is None else timeline.launches
    if launches is not None and launches.graphs:
        raise ValueError("a trace in which graphs were replayed: their ops cost the host nothing")
    if timeline is not None and _busy_share(timeline) > _MOSTLY_BUSY:
        if launches is None:
            raise ValueError("a trace in which the device was busy, and without launches: it says nothing of the host")
        return _from_launching_ops(session, launches)
    return _from_starts(session, measurement.op_starts_s[0])


def _busy_share(timeline: Timeline) -> float:
    steps: Sequence[DeviceTime] = [step for step in timeline.steps if step.in_session] or [timeline]
    wall_s = sum(step.wall_s for step in steps)
    return sum(step.busy_s for step in steps) / wall_s if wall_s else 0.0


def _from_starts(session: Session, starts_s: Float64) -> Host:
    units = queue_of(session, [cost_of(op) for op in session.signatures]).units
    starts = starts_s[session.counted]
    order = np.argsort(starts, kind="stable")
    gaps, spent = np.diff(starts[order]), units[order][:-1]
    each = gaps[(gaps > 0) & (spent > 0)] / spent[(gaps > 0) & (spent > 0)]
    if len(each) < LEAST_GAPS:
        raise ValueError(f"{count_of(len(each), 'op')} after which another began: too few to say what a launch costs")
    middle = each[each < _LONGEST_GAP * np.median(each)]
    return _traced(float(np.median(middle)), f"the starts of {len(each) + 1} traced ops")


def _from_launching_ops(session: Session, launches: Launches) -> Host:
    units: dict[str, list[float]] = {}
    for op in session.signatures:
        units.setdefault(op.name, []).append(units_of(op, cost_of(op)))
    known = [op for op in launches.ops if op.name in units]
    calls = np.array([op.calls for op in known])
    if calls.sum() < LEAST_GAPS:
        raise ValueError(f"{count_of(int(calls.sum()), 'op')} that launched: too few to say what a launch costs")
    each = np.array([op.host_s / op.calls / float(np.mean(units[op.name])) for op in known])
    order = np.argsort(each)
    middle = np.searchsorted(np.cumsum(calls[order]), calls.sum() / 2)
    return _traced(float(each[order][middle]), f"the host's time in {calls.sum():,} traced ops")


def _traced(launch_s: float, what: str) -> Host:
    return replace(Host.of(launch_s, source=f"fitted from {what}"), low=_PROFILED)


CLOCK: Final = "attributed from the time of a step"
LEAST_SHARE: Final = 0.08
"""Of a step's wall time: what is visible of an op that takes less is mostly what was predicted of it before."""
_WIDTHS: Final = 3.3
"""A 90 % interval, from low to high, is so many standard deviations of a normal distribution."""
_LEAST_WIDTH: Final = 0.02
_HIDES, _LEFT = 0.6, 0.85  # shares of a step: what hides the device, and what is left of a host
_SLOWEST: Final = 0.6  # a host that is so much faster than it was taken to be is another host
_CACHED: Final = 2.0  # by how much data in a cache let a step beat the bound of main memory
_FARTHEST: Final = 400.0
_HALVINGS: Final = 60
_MOST_CHANGE: Final = 8.0
"""How many times longer an op may take than it was predicted to: a step that asks for more has another cause."""
_CLOSE: Final = 0.03
"""How far the wall time may stay from the measured one, as a share: further, no times of ops explain it."""


def attributed(analysis: Analysis, wall_s: float) -> Session:
    """The session with times of the ops that its step's wall time tells something of: those with which the step, beside
    ``analysis.host``, takes ``wall_s`` seconds, and which are least unlike what was predicted. Such a session teaches a
    model as a timed one does.

    Each op differs from its prediction by a factor, whose logarithm is in proportion to the variance of the prediction
    (its interval) and to the time that all calls of its signature take: the maximum of the likelihood of independent
    log-normal errors, to first order. No op takes less than its bound: of a step that beats its bound, since its data
    are in a cache, each takes that. Ops with less than 8 % of the wall time have no
    time (NaN).

    Where the host alone takes most of the wall time, that tells only of ops that were predicted to take longer: they
    take no longer than leaves the host 85 % of it.

    Raises ValueError for an analysis without predictions, and where no times of ops explain the wall time: the host's
    takes most of it, or the step is more than twice as fast as its bound; and for a step none of whose ops takes 8 %.
    """
    queue, predicted_s = analysis.queue, analysis.predicted_op_s
    host = _host_beside(analysis, wall_s)
    signature = analysis.session.columns.signature[analysis.session.counted]
    bound_s, width = analysis.estimates.bounds_s[signature], analysis.estimates.widths[signature]
    share = np.bincount(signature, weights=predicted_s) / max(1e-30, float(predicted_s.sum()))
    spread = np.maximum(_LEAST_WIDTH, width / _WIDTHS) ** 2 * share[signature]

    def times(factor: float) -> Float64:
        return np.maximum(bound_s, predicted_s * np.exp(np.clip(factor * spread, -_FARTHEST, log(1e4))))

    low, high = -_FARTHEST, _FARTHEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if queue.wall_s(times(middle), host) < wall_s else (low, middle)
    found = times(high)
    least_s = queue.wall_s(bound_s, host)
    # data in a cache: the bound is that of main memory, and the ops were no slower than that
    if not wall_s < least_s <= _CACHED * wall_s and abs(queue.wall_s(found, host) / wall_s - 1) > _CLOSE:
        raise ValueError(_unexplained(wall_s, least_s, "with every op at its bound"))
    total = np.bincount(signature, weights=found)
    visible = (total[signature] >= LEAST_SHARE * wall_s) & (predicted_s > 0)
    if (found[visible] > _MOST_CHANGE * np.maximum(bound_s[visible], predicted_s[visible])).any():
        raise ValueError(
            f"{Quantity(wall_s, 's')} for a step that is predicted to take "
            f"{Quantity(queue.wall_s(predicted_s, host), 's')}: an op would take more than 8 times as long as predicted"
        )
    if not visible.any():
        raise ValueError(
            f"{Quantity(wall_s, 's')} for a step of which no op takes 8 %: it does not show the time of any of them"
        )
    session = analysis.session
    samples = np.full((1, len(session)), np.nan)
    samples[0, session.counted] = np.where(visible, found, np.nan)
    return session.with_measurement(Measurement(wall_samples_s=np.array([wall_s]), op_samples_s=samples, clock=CLOCK))


def _host_beside(analysis: Analysis, wall_s: float) -> Host:
    """The host, or a faster one. Raises ValueError where it hides what the device does."""
    queue, host = analysis.queue, analysis.host
    alone_s = queue.wall_s(np.zeros(len(queue.units)), host)
    if queue.wall_s(analysis.predicted_op_s, host) <= wall_s:
        if alone_s > _HIDES * wall_s:
            raise ValueError(_unexplained(wall_s, alone_s, "on the host alone"))
        return host
    factor = min(1.0, _LEFT * wall_s / alone_s) if alone_s else 1.0
    if factor < _SLOWEST:
        raise ValueError(_unexplained(wall_s, alone_s, "on the host alone"))
    return host.scaled(factor)


def _unexplained(wall_s: float, least_s: float, how: str) -> str:
    return (
        f"{Quantity(wall_s, 's')} for a step that takes {Quantity(least_s, 's')} {how}: no times of its ops explain it"
    )
