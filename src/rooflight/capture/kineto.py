"""Op times from Kineto, joined to the records of the same step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rooflight.records.session import Float64, Session

STEP_MARK: Final = "rooflight.step"
_MOST_SKIPS: Final = 1000
_SAME_OPS: Final = {"aten::_index_put_impl_": "aten::index_put", "aten::new_zeros": "aten::zeros"}


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
    from torch.autograd import DeviceType  # type: ignore[attr-defined]

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
    record with children takes the sum of theirs. Views are looked for last, between the ops that touch memory: how
    many of them run depends on who looks. With ``device``, an op's time is that of the kernels it launched.
    """
    names = [_base(session.signatures[index].name) for index in session.columns.signature]
    works = works_on_memory(session)
    is_parent = np.zeros(len(session), dtype=bool)
    children = np.flatnonzero(~session.counted)
    is_parent[session.columns.parent[children]] = True
    working = children[works[children]]
    leaves = np.flatnonzero(~is_parent)
    leaf_names = [names[index] for index in leaves]
    views = set(leaf_names) - {names[index] for index in np.flatnonzero(~is_parent & works)}
    rows = []
    for start, end in _steps(events):
        inside = [event for event in events if start <= event.start_ns < end or event.on_device]
        found, seconds = _outermost(inside, set(leaf_names), device=device)
        row = np.full(len(session), np.nan)
        for record, event in _join(leaf_names, found, views):
            row[leaves[record]] = seconds[event]
        row[is_parent] = 0.0
        np.add.at(row, session.columns.parent[working], row[working])
        rows.append(row)
    return np.array(rows).reshape(-1, len(session))


def works_on_memory(session: Session) -> NDArray[np.bool_]:
    """Which records an event must be found for: those that touch memory, not views. Single numbers do not count
    either: torch makes a tensor of them only where a dispatch mode looks on.
    """
    columns = session.columns
    touches = np.diff(columns.read_offsets) + np.diff(columns.written_offsets) > 0
    is_scalar = np.array([op.name == "aten::scalar_tensor" for op in session.signatures], dtype=bool)
    return np.asarray(touches & ~is_scalar[columns.signature])


def _join(expected: Sequence[str], found: Sequence[str], views: Set[str]) -> Iterator[tuple[int, int]]:
    """Pairs of positions of the same op: those that work first, then the views between two of them."""
    ours = [position for position, name in enumerate(expected) if name not in views]
    theirs = [position for position, name in enumerate(found) if name not in views]
    i = j = 0
    pairs = align([expected[position] for position in ours], [found[position] for position in theirs])
    for one, other in [*((ours[one], theirs[other]) for one, other in pairs), (len(expected), len(found))]:
        between = [k for k in range(i, one) if expected[k] in views], [k for k in range(j, other) if found[k] in views]
        if all(between):
            names = [expected[k] for k in between[0]], [found[k] for k in between[1]]
            yield from ((between[0][left], between[1][right]) for left, right in align(*names))
        if one < len(expected):
            yield one, other
        i, j = one + 1, other + 1


def align(expected: Sequence[str], found: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs of positions at which two sequences of names agree, both in order, skipping as few as possible.

    Myers' algorithm (An O(ND) Difference Algorithm, 1986). Beyond a thousand skips it is content with what it has:
    these are two programs.
    """
    reached = {1: 0}  # on each diagonal, expected minus found, how far into expected one gets with so many skips
    history: list[dict[int, int]] = []
    for skips in range(min(len(expected) + len(found), _MOST_SKIPS) + 1):
        history.append(dict(reached))
        for diagonal in range(-skips, skips + 1, 2):
            i = _start(reached, diagonal, skips)
            while i < len(expected) and i - diagonal < len(found) and expected[i] == found[i - diagonal]:
                i += 1
            reached[diagonal] = i
            if i >= len(expected) and i - diagonal >= len(found):
                return _path(history, diagonal, i)
    best = max(reached, key=lambda diagonal: 2 * reached[diagonal] - diagonal)
    return _path(history, best, reached[best])


def _from_right(reached: Mapping[int, int], diagonal: int, skips: int) -> bool:
    """Whether a diagonal is entered from the next one, skipping a found name, and not an expected one."""
    if diagonal in (-skips, skips):
        return diagonal == -skips
    return reached[diagonal - 1] < reached[diagonal + 1]


def _start(reached: Mapping[int, int], diagonal: int, skips: int) -> int:
    """How far into expected a diagonal is entered."""
    return reached[diagonal + 1] if _from_right(reached, diagonal, skips) else reached[diagonal - 1] + 1


def _path(history: Sequence[Mapping[int, int]], diagonal: int, end: int) -> list[tuple[int, int]]:
    """The agreements on the way to the end, in order."""
    pairs: list[tuple[int, int]] = []
    for skips in range(len(history) - 1, -1, -1):
        start = _start(history[skips], diagonal, skips)
        pairs += [(i, i - diagonal) for i in range(end - 1, start - 1, -1)]
        if _from_right(history[skips], diagonal, skips):
            diagonal, end = diagonal + 1, start
        else:
            diagonal, end = diagonal - 1, start - 1
    return pairs[::-1]


def _base(name: str) -> str:
    """The name that variants share: autograd works on gradients in place, unless a recording looks on."""
    return _SAME_OPS.get(name) or name.removesuffix("_")


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
        elif (name := _base(event.name)) in names:
            position = len(found)
            open_until[event.thread] = (event.end_ns, position)
            owner[event.correlation] = position
            found.append(name)
            seconds.append(0.0 if device else (event.end_ns - event.start_ns) * 1e-9)
    if device:
        for event in events:
            if event.on_device and event.correlation in owner and event.name != STEP_MARK:
                seconds[owner[event.correlation]] += (event.end_ns - event.start_ns) * 1e-9
    return found, seconds
