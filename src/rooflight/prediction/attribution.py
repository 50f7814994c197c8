"""Attribution: what a step's wall time says of the times of its ops, where the ops were not timed."""

from __future__ import annotations

from math import log
from typing import Final

import numpy as np

from rooflight.records.measurement import Float64, Measurement
from rooflight.records.quantity import Quantity
from rooflight.records.session import Session
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.host import Host

CLOCK: Final = "attributed from the time of a step"
LEAST_SHARE: Final = 0.08
"""Of a step's wall time: what is told of an op that takes less is mostly what was predicted of it before."""
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
    told = (total[signature] >= LEAST_SHARE * wall_s) & (predicted_s > 0)
    if (found[told] > _MOST_CHANGE * np.maximum(bound_s[told], predicted_s[told])).any():
        raise ValueError(
            f"{Quantity(wall_s, 's')} for a step that is predicted to take "
            f"{Quantity(queue.wall_s(predicted_s, host), 's')}: an op would take more than 8 times as long as predicted"
        )
    if not told.any():
        raise ValueError(
            f"{Quantity(wall_s, 's')} for a step of which no op takes 8 %: it does not show the time of any of them"
        )
    return analysis.session.with_measurement(_measurement(analysis.session, found, told, wall_s))


def _host_beside(analysis: Analysis, wall_s: float) -> Host:
    """The host, or a faster one if the device was predicted to take longer than the step did. Raises ValueError where
    the host hides what the device does.
    """
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


def _measurement(session: Session, seconds: Float64, told: np.ndarray, wall_s: float) -> Measurement:
    samples = np.full((1, len(session)), np.nan)
    samples[0, session.counted] = np.where(told, seconds, np.nan)
    return Measurement(wall_samples_s=np.array([wall_s]), op_samples_s=samples, clock=CLOCK)
