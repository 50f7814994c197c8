"""Op times from Kineto, joined to the records of the same step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rooflight.records.session import Float64, Session

STEP_MARK: Final = "rooflight.step"
_WINDOW: Final = 256  # how far apart the two sequences may drift before an op counts as missing


@dataclass(frozen=True, slots=True)
class Event:
    """One op or kernel that Kineto saw. ``correlation`` ties a kernel to the op that launched it."""

    name: str
    start_ns: int
    end_ns: int
    thread: int
    correlation: int
    on_device: bool


def events_of(results: Any) -> list[Event]:
    """Kineto's raw events, without the detour through FunctionEvent, which takes longer than the run."""
    from torch.autograd import DeviceType

    found = []
    for raw in results.events():
        on_device = raw.device_type() != DeviceType.CPU
        start = raw.start_ns()
        found.append(
            Event(
                raw.name(),
                start,
                start + raw.duration_ns(),
                raw.start_thread_id(),
                raw.linked_correlation_id() if on_device else raw.correlation_id(),
                on_device,
            )
        )
    return found


def op_times(session: Session, events: Sequence[Event], *, device: bool) -> Float64:
    """Seconds of each record, one row a marked step; NaN for a record that no event was found for.

    A record without children is looked for by name, in order, among the outermost events with a recorded name; a
    record with children takes the sum of theirs. With ``device``, an op's time is that of the kernels it launched.
    """
    names = [session.signatures[index].name for index in session.columns.signature]
    is_parent = np.zeros(len(session), dtype=bool)
    children = np.flatnonzero(~session.counted)
    parents = session.columns.parent[children]
    is_parent[parents] = True
    leaves = np.flatnonzero(~is_parent)
    leaf_names = [names[index] for index in leaves]
    rows = []
    for start, end in _steps(events):
        inside = [event for event in events if start <= event.start_ns < end or event.on_device]
        found, seconds = _outermost(inside, set(leaf_names), device=device)
        row = np.full(len(session), np.nan)
        for record, event in align(leaf_names, found):
            row[leaves[record]] = seconds[event]
        row[is_parent] = 0.0
        np.add.at(row, parents, row[children])
        rows.append(row)
    return np.array(rows).reshape(-1, len(session))


def align(expected: Sequence[str], found: Sequence[str]) -> Iterable[tuple[int, int]]:
    """Pairs of positions at which two sequences of names agree, both in order, skipping as little as possible."""
    i = j = 0
    while i < len(expected) and j < len(found):
        if expected[i] == found[j]:
            yield i, j
            i, j = i + 1, j + 1
            continue
        skip_found = _next(found, expected[i], j)
        skip_expected = _next(expected, found[j], i)
        if skip_found is not None and (skip_expected is None or skip_found - j <= skip_expected - i):
            j = skip_found
        elif skip_expected is not None:
            i = skip_expected
        else:
            i, j = i + 1, j + 1


def _next(names: Sequence[str], wanted: str, start: int) -> int | None:
    for position in range(start, min(start + _WINDOW, len(names))):
        if names[position] == wanted:
            return position
    return None


def _steps(events: Iterable[Event]) -> list[tuple[int, int]]:
    return sorted((e.start_ns, e.end_ns) for e in events if e.name == STEP_MARK and not e.on_device)


def _outermost(events: Sequence[Event], names: set[str], *, device: bool) -> tuple[list[str], list[float]]:
    """Names and times of the events with a name of interest that lie in no other such event, by start."""
    found: list[str] = []
    seconds: list[float] = []
    owner: dict[int, int] = {}  # correlation of an op -> the outermost op it is part of
    open_until: dict[int, tuple[int, int]] = {}  # thread -> (end of its outermost op, that op's position)
    for event in sorted((e for e in events if not e.on_device), key=lambda e: (e.start_ns, -e.end_ns)):
        end, position = open_until.get(event.thread, (-1, -1))
        if event.start_ns < end:
            owner[event.correlation] = position
        elif event.name in names:
            position = len(found)
            open_until[event.thread] = (event.end_ns, position)
            owner[event.correlation] = position
            found.append(event.name)
            seconds.append(0.0 if device else (event.end_ns - event.start_ns) * 1e-9)
    if device:
        for event in events:
            if event.on_device and event.correlation in owner:
                seconds[owner[event.correlation]] += (event.end_ns - event.start_ns) * 1e-9
    return found, seconds
