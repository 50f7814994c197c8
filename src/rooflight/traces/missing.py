"""What a trace lacks, in words: notes of its report, and why one has nothing to analyse."""

from __future__ import annotations

from typing import Final

from rooflight.records.quantity import count_of
from rooflight.records.session import Int32
from rooflight.traces.clocks import clock_doubts
from rooflight.traces.collectives import assumed_group
from rooflight.traces.trace import Trace

_REASONS: Final = 3  # so many reasons are named


def missing(trace: Trace, call_of: Int32) -> list[str]:
    """What was left out of the trace, and what of it is doubtful; ``call_of[k]`` is the call that launched work k."""
    name = trace.path.name
    notes = [f"{name}: {count_of(events, 'event')} left out: {why}." for why, events in trace.left_out.items()]
    if trace.odd:
        odd = count_of(trace.odd, "event")
        notes.append(f"{name}: {odd} with fields of types that torch's profiler does not write: some count as unknown.")
    launches = sum("launch" in trace.names[number].lower() for number in trace.calls.name.tolist())
    if launches and not trace.has_device:
        notes.append(
            f"{name}: {count_of(launches, 'call')} launched work on a device, of which the trace has nothing: times "
            "are those of the host. Record it with ProfilerActivity.CUDA."
        )
    if assumed := assumed_group(trace):
        notes.append(f"{name}: {assumed}")
    notes += [f"{name}: {doubt}" for doubt in clock_doubts(trace, call_of)]
    return notes


def nothing_ran(trace: Trace) -> str:
    """Why there is nothing to analyse."""
    if not trace.events:
        return f"{trace.path}: the trace has no events: nothing ran while it was recorded"
    found = f"{trace.path} has {count_of(trace.events, 'event')}, but no op and no work of a device"
    if not trace.left_out:
        return f"{found}: nothing ran while it was recorded"
    most = sorted(trace.left_out.items(), key=lambda reason: -reason[1])[:_REASONS]
    return f"{found} ({', '.join(f'{why}: {events:,}' for why, events in most)}): give a trace of torch.profiler"
