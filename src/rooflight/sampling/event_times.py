"""Times of named events in a profiler's trace, one per step, chosen by estimate-train-time's ``targets``.

A target is a path of names. The first is looked for within a step, each further one within the events found so far; a
list in the place of a name takes the events of all its names together. An event's name is the target's, or contains it
where no event has exactly that name; of events inside each other the outermost counts. What was found together takes
the time from the start of the first kernel that was launched within it to the end of the last, gaps included; on a
CPU from the start of the first event to the end of the last. A step's time is the sum.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

Target = tuple[str | tuple[str, ...], ...]
"""Names, each within the one before."""
Group = tuple["HostEvent", ...]
"""Events that are timed together."""

_HOST: Final = frozenset({"cpu_op", "user_annotation", "python_function"})
_LAUNCH: Final = frozenset({"cuda_runtime", "cuda_driver"})
_DEVICE: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_STEP: Final = "ProfilerStep#"
_NAMES_SHOWN: Final = 20


class NoSuchEventError(ValueError):
    """A target names nothing in a trace."""


@dataclass(frozen=True, slots=True)
class HostEvent:
    """Something that ran on a thread of the host, in microseconds."""

    start_us: float
    end_us: float
    name: str
    thread: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A trace's events by start, its steps, when each launch was made, and what each one ran on the device."""

    steps: tuple[HostEvent, ...]
    events: tuple[HostEvent, ...]
    launches: tuple[tuple[float, int], ...]
    device: Mapping[int, tuple[float, float]]


def read(path: Path) -> Trace:
    """A Chrome trace as torch's profiler writes it."""
    events: list[HostEvent] = []
    launches: list[tuple[float, int]] = []
    device: dict[int, tuple[float, float]] = {}
    for each in msgspec.json.decode(path.read_bytes())["traceEvents"]:
        category = each.get("cat")
        if each.get("ph") != "X":
            continue
        start, end = each["ts"], each["ts"] + each["dur"]
        correlation = each.get("args", {}).get("correlation")
        if category in _HOST:
            events.append(HostEvent(start, end, each["name"], each.get("tid")))
        elif category in _LAUNCH and correlation is not None:
            launches.append((start, correlation))
        elif category in _DEVICE and correlation is not None:
            before = device.get(correlation, (start, end))
            device[correlation] = min(before[0], start), max(before[1], end)
    events.sort(key=lambda event: (event.start_us, -event.end_us))
    return Trace(
        steps=tuple(event for event in events if event.name.startswith(_STEP)),
        events=tuple(event for event in events if not event.name.startswith(_STEP)),
        launches=tuple(sorted(launches)),
        device=device,
    )


def times_s(trace: Trace, target: Target) -> tuple[float, ...]:
    """Seconds of each step's events that a target names; steps without any are left out.

    Raises NoSuchEventError, with the names that there are, where no step has any.
    """
    exact = {event.name for event in trace.events}
    found = []
    for step in trace.steps:
        groups: list[Group] = [(step,)]
        for name in target:
            groups = list(_within(trace.events, groups, name, exact))
        if time_us := sum(_time_us(trace, group) for group in groups):
            found.append(time_us * 1e-6)
    if not found:
        path = " > ".join(name if isinstance(name, str) else " or ".join(name) for name in target)
        raise NoSuchEventError(f"no event of the profile is named {path}: there are {_names(trace)}")
    return tuple(found)


def _within(
    events: Sequence[HostEvent], groups: Iterable[Group], name: str | tuple[str, ...], exact: Collection[str]
) -> Iterable[Group]:
    for group in groups:
        found = ((outer, _starting_in(events, lambda event: event.start_us, outer)) for outer in group)
        inside = [event for outer, started in found for event in started if event is not outer]
        if isinstance(name, str):
            yield from ((event,) for event in _outermost(inside, (name,), exact))
        elif together := tuple(_outermost(inside, name, exact)):
            yield together


def _outermost(events: Iterable[HostEvent], names: tuple[str, ...], exact: Collection[str]) -> Iterable[HostEvent]:
    ends: defaultdict[object, float] = defaultdict(float)
    for event in events:
        named = any(event.name == name if name in exact else name in event.name for name in names)
        if named and event.start_us >= ends[event.thread]:
            ends[event.thread] = event.end_us
            yield event


def _starting_in(sorted_: Sequence[Any], start_us: Callable[[Any], float], outer: HostEvent) -> Sequence[Any]:
    """What starts while an event runs, on all threads: a backward pass may run on another one."""
    return sorted_[
        bisect_left(sorted_, outer.start_us, key=start_us) : bisect_left(sorted_, outer.end_us, key=start_us)
    ]


def _time_us(trace: Trace, group: Group) -> float:
    if not trace.device:
        return max(event.end_us for event in group) - min(event.start_us for event in group)
    spans = [
        trace.device[correlation]
        for event in group
        for _, correlation in _starting_in(trace.launches, lambda launch: launch[0], event)
        if correlation in trace.device
    ]
    return max(end for _, end in spans) - min(start for start, _ in spans) if spans else 0.0


def _names(trace: Trace) -> str:
    spent: Counter[str] = Counter()
    for event in trace.events:
        if any(step.start_us <= event.start_us < step.end_us for step in trace.steps):
            spent[event.name] += round(1000 * (event.end_us - event.start_us))
    shown = [name for name, _ in spent.most_common(_NAMES_SHOWN)]
    more = len(spent) - len(shown)
    return ", ".join(shown) + (f" and {more} more (run get_profiler writes them all)" if more > 0 else "")
