"""Notes of what a trace lacks, and of times in it that cannot all be right.

Some traces have events far away from all others, or work that ran before its launch: Kineto converts the device's clock
to the host's, and has written times of 0, and of another clock, where that failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from rooflight.records.quantity import Quantity, count_of
from rooflight.records.session import Int64
from rooflight.traces.file.trace import UNKNOWN, Trace
from rooflight.traces.ops.collectives import assumed_group
from rooflight.traces.ownership import Ownership

_FAR_NS: Final = 3_600 * 10**9  # no program that is profiled does nothing for an hour
_FEW: Final = 0.01  # share of the events: if so few are far away, the others are right
_REASONS: Final = 3  # so many reasons are named


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
        ops=trace.ops.between(first, last),
        calls=trace.calls.between(first, last),
        work=trace.work.between(first, last),
        ranges=trace.ranges.between(first - _FAR_NS, last + _FAR_NS),
        left_out=left_out,
    )


def notes_of(owned: Ownership) -> list[str]:
    """What was left out of the trace, and what of it is doubtful."""
    trace, name = owned.trace, owned.trace.path.name
    notes = [f"{count_of(events, 'event')} left out: {why}." for why, events in trace.left_out.items()]
    if trace.odd:
        odd = count_of(trace.odd, "event")
        notes.append(f"{odd} with fields of types that torch's profiler does not write: some count as unknown.")
    launches = int(trace.named(trace.calls, lambda name: "launch" in name.lower()).sum())
    if launches and not trace.has_device:
        notes.append(
            f"{count_of(launches, 'call')} launched work on a device, of which the trace has nothing: times "
            "are those of the host. Record it with ProfilerActivity.CUDA."
        )
    if assumed := assumed_group(trace):
        notes.append(assumed)
    return [f"{name}: {note}" for note in (*notes, *_clock_notes(owned))]


def _clock_notes(owned: Ownership) -> Iterator[str]:
    trace = owned.trace
    longest = int(np.diff(_times(trace)).max(initial=0))
    if longest > _FAR_NS:
        yield (
            f"For {Quantity(longest * 1e-9, 's')} nothing begins in the trace: it has two runs, or two clocks that "
            "differ by as much. The wall time and the idle time include that."
        )
    known = owned.call != UNKNOWN
    early = trace.calls.start[owned.call[known]] - trace.work.start[known]
    if (early > 0).any():
        begun = count_of(int((early > 0).sum()), "piece begins", "pieces begin")
        yield (
            f"Of {len(early):,} pieces of the device's work {begun} before the call that launched "
            f"it, by up to {Quantity(int(early.max()) * 1e-9, 's')}: the clocks of host and device differ. Durations "
            "are right; what lies between host and device (the wall time, idle at its ends) is not."
        )
    if instant := int((trace.work.length == 0).sum()):
        yield f"{count_of(instant, 'piece')} of the device's work took 0 s by its clock, which no work takes."


def _times(trace: Trace) -> Int64:
    return np.sort(np.concatenate([trace.ops.start, trace.calls.start, trace.work.start]))


def nothing_ran(trace: Trace) -> str:
    """Why there is nothing to analyse."""
    if not trace.events:
        return f"{trace.path}: the trace has no events: nothing ran while it was recorded"
    found = f"{trace.path} has {count_of(trace.events, 'event')}, but no op and no work of a device"
    if not trace.left_out:
        return f"{found}: nothing ran while it was recorded"
    most = sorted(trace.left_out.items(), key=lambda reason: -reason[1])[:_REASONS]
    return f"{found} ({', '.join(f'{why}: {events:,}' for why, events in most)}): give a trace of torch.profiler"
