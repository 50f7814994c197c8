"""What the trace of a live program's window tells of its iteration: why the device was idle, and what had no op."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import ParamSpec

import numpy as np

from rooflight.records.account import Cause
from rooflight.records.measurement import Float64
from rooflight.records.session import Session
from rooflight.records.timeline import Timeline, Waited
from rooflight.sources.capture.time.measure import measure as measured_ops
from rooflight.sources.capture.time.window import TRACE
from rooflight.sources.traces.session import read_trace

_Given = ParamSpec("_Given")


def with_window(session: Session) -> Session:
    """The session with the timeline of its window, whose trace is read and removed; others as they are."""
    facts = dict(session.environment)
    path = facts.pop(TRACE, None)
    if path is None:
        return session
    session = replace(session, environment=facts)
    try:
        seen = read_trace(path).measurement
    except (ValueError, OSError) as error:
        return replace(session, notes=(*session.notes, f"Why the device was idle is not known: {error}"))
    finally:
        Path(path).unlink(missing_ok=True)
    own = session.measurement
    if own is None or seen is None or seen.timeline is None:
        return session
    timeline = _undisturbed(seen.timeline, seen.wall_samples_s, own.wall_samples_s)
    seconds = np.nan_to_num(own.op_samples_s).sum(axis=0) * session.counted
    by_signature = np.bincount(session.columns.signature, seconds, len(session.signatures))
    timeline = replace(timeline, signature_s=tuple(by_signature.tolist()))
    return session.with_measurement(replace(own, timeline=timeline))


def _seen_whole(measure: Callable[_Given, Session]) -> Callable[_Given, Session]:
    """The function, with what its window shows."""

    @wraps(measure)
    def measured(*args: _Given.args, **kwargs: _Given.kwargs) -> Session:
        return with_window(measure(*args, **kwargs))

    return measured


measure = _seen_whole(measured_ops)


def _undisturbed(timeline: Timeline, profiled: Float64, walls: Float64) -> Timeline:
    """The timeline of iterations that take so long without a profiler. It slows the host, for which the device then
    waits: its waits share what its work leaves of the wall, and what they do not explain is unknown.
    """
    waited_s = sum(each.seconds for each in timeline.waits)
    left_s = max(0.0, float(walls.mean()) - (float(profiled.mean()) - waited_s))
    factor, many = min(1.0, left_s / waited_s) if waited_s else 0.0, len(walls) / len(profiled)
    waits = [replace(each, seconds=each.seconds * factor, seen=round(each.seen * many)) for each in timeline.waits]
    rest_s = left_s - waited_s * factor
    if rest_s > 0:
        waits.append(Waited(cause=Cause.UNKNOWN, seconds=rest_s, seen=len(walls)))
    return replace(timeline, waits=tuple(waits))
