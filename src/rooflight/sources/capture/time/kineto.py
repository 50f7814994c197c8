"""Op times from Kineto, matched with the records of the same step."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rooflight.hardware.network.collectives import kind_of, waits
from rooflight.records.measurement import Float64
from rooflight.records.session import Session
from rooflight.sources.capture.time.collectives import (
    SPAN,
    Event,
    Interval,
    Launch,
    StepCollectives,
    join_spans,
    worker_threads,
)


def events_of(results: Any) -> list[Event]:
    """Kineto's raw events, without torch's FunctionEvents, which take longer to make than the run takes."""
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


STEP_MARK: Final = "rooflight.step"
_MOST_SKIPS: Final = 1000
_SAME_OPS: Final = {
    "aten::_index_put_impl_": "aten::index_put",
    "aten::max_pool1d": "aten::max_pool2d_with_indices",  # a kernel of its own where no gradient is needed
    "aten::new_zeros": "aten::zeros",
}
_KEPT: Final = "aten::clone"
_SUBCLASS: Final = "PythonSubclass"
"""The event of a tensor subclass's own dispatch, around the ops on plain tensors that it calls."""

_NCCL: Final = ("nccl", "rccl")


@dataclass(frozen=True, slots=True)
class OpTimes:
    """Seconds of each record, and its start in seconds from the start of the step's mark: one row per marked step, NaN
    for a record whose time is not known. ``after_s``: of each step, from the end of the last op on the host.
    """

    seconds: Float64
    starts_s: Float64
    after_s: Float64


@dataclass(slots=True)
class _Found:
    name: str
    event: Event
    kernels: list[Event] = field(default_factory=list)
    kept_ns: int = 0  # of copies inside, which are ops of their own

    @property
    def kernels_ns(self) -> int:
        return sum(kernel.end_ns - kernel.start_ns for kernel in self.kernels)

    @property
    def collective(self) -> Interval | None:
        kernels = [kernel for kernel in self.kernels if kernel.name.startswith(_NCCL)]
        if not kernels:
            return None
        return min(kernel.start_ns for kernel in kernels), max(kernel.end_ns for kernel in kernels)


def op_times(session: Session, events: Sequence[Event], *, device: bool) -> OpTimes:
    """When each record began, and how long it took.

    A record without children is looked for by name, in order, among the outermost events with a recorded name; the time
    of a record with children is the sum of theirs. Views are looked for last, between the ops that touch memory, since
    under a dispatch mode or a profiler torch runs other numbers of views. With ``device``, an op's time is that of the
    kernels that it launched.

    A collective's time is that of NCCL's kernel or of the span that gloo's thread writes, since its op only queues it.
    The op that waits for one does no work, and takes 0 s.
    """
    leaves, names, views = _leaves_of(session)
    marks = sorted((e.start_ns, e.end_ns) for e in events if e.name == STEP_MARK and not e.on_device)
    workers = worker_threads(events)
    seconds, starts = (np.full((len(marks), len(session)), np.nan) for _ in range(2))
    after_s = np.zeros(len(marks))
    collectives: list[StepCollectives] = []
    kernels: list[dict[int, Interval]] = []
    for row, (start, end) in enumerate(marks):
        inside = [e for e in events if (start <= e.start_ns < end and e.thread not in workers) or e.on_device]
        launches: list[Launch] = []
        on_device: dict[int, Interval] = {}
        ran = _outermost(inside, set(names), device=device)
        after_s[row] = (end - max((one.event.end_ns for one in ran), default=start)) * 1e-9
        for leaf, other in _join(names, [one.name for one in ran], views):
            record, found = leaves[leaf], ran[other]
            op = session.signatures[session.columns.signature[record]]
            if kind_of(op.name) is None:
                seconds[row, record], starts[row, record] = _seconds(found, start, device=device, idle=waits(op.name))
                continue
            launches.append(Launch(record, op, found.event.start_ns, found.event.end_ns, found.event.thread))
            if (when := found.collective) is not None:
                on_device[record] = when
        until = marks[row + 1][0] if row + 1 < len(marks) else np.inf
        spans = [e for e in events if start <= e.start_ns < until and e.name.startswith(SPAN) and not e.on_device]
        collectives.append(StepCollectives(launches, spans))
        kernels.append(on_device)
    for row, (on_host, on_device) in enumerate(zip(join_spans(collectives), kernels, strict=True)):
        for record, (start, end) in {**on_host, **on_device}.items():
            seconds[row, record] = (end - start) * 1e-9
            starts[row, record] = (start - marks[row][0]) * 1e-9
    _sum_children(session, seconds, starts)
    return OpTimes(seconds, starts, np.maximum(after_s, 0.0))


def _leaves_of(session: Session) -> tuple[list[int], list[str], set[str]]:
    names = [_base(session.signatures[index].name) for index in session.columns.signature]
    is_leaf = ~_is_parent(session) & ~_is_unseen(session)
    leaves = [int(record) for record in np.flatnonzero(is_leaf)]
    working = {names[record] for record in np.flatnonzero(is_leaf & works_on_memory(session))}
    leaf_names = [names[record] for record in leaves]
    return leaves, leaf_names, set(leaf_names) - working


def _is_parent(session: Session) -> NDArray[np.bool_]:
    is_parent = np.zeros(len(session), dtype=bool)
    is_parent[session.columns.parent[~session.counted]] = True
    return is_parent


def _is_unseen(session: Session) -> NDArray[np.bool_]:
    unseen = np.array([op.is_unseen for op in session.signatures], dtype=np.bool_)
    return np.asarray(unseen[session.columns.signature])


def _sum_children(session: Session, seconds: Float64, starts: Float64) -> None:
    children = np.flatnonzero(~session.counted & works_on_memory(session))
    parents = session.columns.parent[children]
    seconds[:, _is_parent(session)] = 0.0
    for row in range(len(seconds)):
        np.add.at(seconds[row], parents, seconds[row, children])
        np.fmin.at(starts[row], parents, starts[row, children])


def _seconds(one: _Found, begin_ns: int, *, device: bool, idle: bool) -> tuple[float, float]:
    if device and not one.kernels:
        return 0.0, np.nan
    start_ns = min(kernel.start_ns for kernel in one.kernels) if device else one.event.start_ns
    took_ns = one.kernels_ns if device else one.event.end_ns - one.event.start_ns - one.kept_ns
    return 0.0 if idle else took_ns * 1e-9, (start_ns - begin_ns) * 1e-9


def works_on_memory(session: Session) -> NDArray[np.bool_]:
    """The records that must have an event: those that touch memory, not views. Ops on single numbers do not count
    either, because torch makes tensors of them only under a dispatch mode. Inferred records have no event.
    """
    columns = session.columns
    touches = np.diff(columns.read_offsets) + np.diff(columns.written_offsets) > 0
    is_scalar = np.array([op.name == "aten::scalar_tensor" for op in session.signatures], dtype=bool)
    return np.asarray(touches & ~is_scalar[columns.signature] & ~_is_unseen(session))


def _join(expected: Sequence[str], found: Sequence[str], views: Set[str]) -> Iterator[tuple[int, int]]:
    """Pairs of positions of the same op: first of ops that touch memory, then of the views between two of them."""
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

    Myers' algorithm (An O(ND) Difference Algorithm, 1986). After a thousand skips it stops with the pairs found so far,
    because these are two programs.
    """
    reached = {1: 0}  # by diagonal (expected minus found): the position in expected that so many skips can reach
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
    if diagonal in (-skips, skips):
        return diagonal == -skips
    return reached[diagonal - 1] < reached[diagonal + 1]


def _start(reached: Mapping[int, int], diagonal: int, skips: int) -> int:
    return reached[diagonal + 1] if _from_right(reached, diagonal, skips) else reached[diagonal - 1] + 1


def _path(history: Sequence[Mapping[int, int]], diagonal: int, end: int) -> list[tuple[int, int]]:
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
    """The name that variants share: autograd changes gradients in place, except while they are recorded."""
    return _SAME_OPS.get(name) or name.removesuffix("_")


def _outermost(events: Sequence[Event], names: set[str], *, device: bool) -> list[_Found]:
    """Those inside no other, but for copies that autograd keeps of what an op overwrites: these are recorded before
    the op. Of an op on a tensor subclass, the ops on the plain tensors inside were recorded.
    """
    found: list[_Found] = []
    owner: dict[int, _Found] = {}  # correlation of an op -> the outermost op it is part of
    open_until: dict[int, tuple[int, _Found]] = {}  # thread -> (end of its outermost op, that op)
    subclasses: dict[int, list[int]] = defaultdict(list)
    on_host = sorted((e for e in events if not e.on_device), key=lambda e: (e.start_ns, -e.end_ns))
    for event in on_host:
        if event.name == _SUBCLASS:
            subclasses[event.thread].append(event.start_ns)
    for event in on_host:
        end, outer = open_until.get(event.thread, (-1, None))
        name = _base(event.name)
        if outer is not None and event.start_ns < end:
            owner[event.correlation] = outer
            if name == _KEPT and name in names and outer.event.name.endswith("_"):
                outer.kept_ns += event.end_ns - event.start_ns
                place = next(place for place in reversed(range(len(found))) if found[place] is outer)  # near the end
                found.insert(place, _Found(name, event))
        elif name in names and not _passes_on(event, subclasses[event.thread]):
            outer = _Found(name, event)
            open_until[event.thread] = (event.end_ns, outer)
            owner[event.correlation] = outer
            found.append(outer)
    if device:
        host_names = {event.name for event in on_host}  # the device's timeline has the host's marks too
        for event in events:
            if event.on_device and event.correlation in owner and event.name not in host_names:
                owner[event.correlation].kernels.append(event)
    return found


def _passes_on(event: Event, subclasses: Sequence[int]) -> bool:
    first = bisect_left(subclasses, event.start_ns)
    return first < len(subclasses) and subclasses[first] < event.end_ns
