"""Fitting a host: what the launches of a machine cost, from programs that were measured on it, or from its traces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, log
from typing import Final

import numpy as np

from rooflight.costs.registry import cost_of
from rooflight.records.quantity import count_of
from rooflight.records.session import Float64, Session
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.host import TYPICAL, Host
from rooflight.roofline.wall import Queue, queue_of

LEAST: Final = 3
"""Least number of programs: of fewer, one that is limited by its device would settle a host that nobody saw."""
_LAUNCH_S: Final = (2e-7, 5e-4)
_STEPS: Final = 160
_INTERVAL: Final = (0.05, 0.95)
_WIDEST_IN: Final = (0.75, 1.35)
"""An interval is never narrower than this: few programs agree by chance."""
_TYPICAL_WEIGHT: Final = 0.02  # error that an e-fold away from a typical host has to save
_CLAMP: Final = log(3.0)  # one program that the device's models are wrong about must not settle the host
_LEAST_GAPS: Final = 20
_LONGEST_GAP: Final = 20.0  # times the median: a host that waited


def fit_host(programs: Iterable[tuple[Analysis, float]] | Session) -> Host:
    """The host of a machine, from programs measured there: pairs of an analysis with predicted times (``rl.analyze(...,
    predictor=...)``) and the measured wall time of an eager step in seconds. Five small programs are enough, at
    least three must be; some must be limited by the host, with many small ops. The launch time is that with the least
    mean absolute error of the logarithm of the wall times.

    Or from a session that ``rl.read_trace`` made of an eager program: from the times between the ops that the host
    issued. A profiler makes these longer than they are without it.

    Raises ValueError for fewer programs, times that are not positive, analyses without predictions or for a CPU, and a
    session without the starts of its ops.
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
    return Host(
        launch_s=found.launch_s,
        first_s=found.first_s,
        low=min(_WIDEST_IN[0], exp(max(-_CLAMP, float(np.quantile(off, _INTERVAL[0]))))),
        high=max(_WIDEST_IN[1], exp(min(_CLAMP, float(np.quantile(off, _INTERVAL[1]))))),
        source=f"fitted from {count_of(len(given), 'program')}",
    )


def _least_off(queues: Sequence[Queue], device_s: Sequence[Float64], walls: Float64) -> float:
    """The launch time whose walls are least off; where the device limits all, so that no launch time matters, a typical
    one.
    """
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
    """The median over ops of the time until the next op began, for each unit of work of its kind."""
    measurement = session.measurement
    if measurement is None or not len(measurement.op_starts_s) or session.environment.get("device_kind") == "cpu":
        raise ValueError("a session without the starts of a GPU's ops: read it from a trace, or give measured programs")
    units = queue_of(session, [cost_of(op) for op in session.signatures]).units
    starts = measurement.op_starts_s[0][session.counted]
    order = np.argsort(starts, kind="stable")
    gaps, spent = np.diff(starts[order]), units[order][:-1]
    each = gaps[(gaps > 0) & (spent > 0)] / spent[(gaps > 0) & (spent > 0)]
    if len(each) < _LEAST_GAPS:
        raise ValueError(f"{count_of(len(each), 'op')} after which another began: too few to say what a launch costs")
    middle = each[each < _LONGEST_GAP * np.median(each)]
    return Host.of(float(np.median(middle)), source=f"fitted from the starts of {len(each) + 1} traced ops")
