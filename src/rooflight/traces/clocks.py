"""Times in a trace that cannot all be right: events far away from all others, and work that ran before its launch.

Kineto converts the device's clock to the host's, and has written times of 0, and of another clock, where that failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, Final, TypeVar

import numpy as np

from rooflight.records.quantity import Quantity, count_of
from rooflight.records.session import Flags, Int32, Int64
from rooflight.traces.trace import UNKNOWN, Spans, Trace

_FAR_NS: Final = 3_600 * 10**9  # no program that is profiled does nothing for an hour
_FEW: Final = 0.01  # share of the events: if so few are far away, the others are right

_Some = TypeVar("_Some", bound=Spans)


def without_strays(trace: Trace) -> Trace:
    """The trace without the few events that are more than an hour away from all others, which are counted."""
    times = _times(trace)
    edges = np.flatnonzero(np.diff(times) > _FAR_NS) + 1
    if not len(edges):
        return trace
    bounds = [0, *edges.tolist(), len(times)]
    sizes = np.diff(bounds)
    largest = int(np.argmax(sizes))
    strays = len(times) - int(sizes[largest])
    if strays > max(1, _FEW * len(times)) or 2 * strays >= len(times):
        return trace
    first, last = int(times[bounds[largest]]), int(times[bounds[largest + 1] - 1])
    left_out = {**trace.left_out, "more than an hour away from all others: their clock was another": strays}
    return replace(
        trace,
        ops=_between(trace.ops, first, last),
        calls=_between(trace.calls, first, last),
        work=_between(trace.work, first, last),
        ranges=_between(trace.ranges, first - _FAR_NS, last + _FAR_NS),
        left_out=left_out,
    )


def clock_doubts(trace: Trace, call_of: Int32) -> Iterator[str]:
    """What is wrong with the times of a trace; ``call_of[k]`` is the call that launched work k."""
    times = _times(trace)
    longest = int(np.diff(times).max(initial=0))
    if longest > _FAR_NS:
        yield (
            f"For {Quantity(longest * 1e-9, 's')} nothing begins in the trace: it has two runs, or two clocks that "
            "differ by as much. The wall time and the idle time include that."
        )
    known = call_of != UNKNOWN
    early = trace.calls.start[call_of[known]] - trace.work.start[known]
    if (early > 0).any():
        begun = count_of(int((early > 0).sum()), "piece begins", "pieces begin")
        yield (
            f"Of {len(early):,} pieces of the device's work {begun} before the call that launched "
            f"it, by up to {Quantity(int(early.max()) * 1e-9, 's')}: the clocks of host and device differ. Durations "
            "are right; what lies between host and device (the wall time, idle at its ends) is not."
        )
    if instant := int((trace.work.stop == trace.work.start).sum()):
        yield f"{count_of(instant, 'piece')} of the device's work took 0 s by its clock, which no work takes."


def _times(trace: Trace) -> Int64:
    return np.sort(np.concatenate([trace.ops.start, trace.calls.start, trace.work.start]))


def _between(spans: _Some, first: int, last: int) -> _Some:
    chosen: Flags = (spans.start >= first) & (spans.start <= last)
    if chosen.all():
        return spans
    columns: dict[str, Any] = {each.name: getattr(spans, each.name)[chosen] for each in fields(spans)}
    return replace(spans, **columns)
