"""When a collective really ran on the host: spans that gloo's own threads write, joined to the ops that queued them.

The op (``c10d::allreduce_``) only puts work on its process group's queue. A thread of that group takes it off, writes a
span ``gloo:all_reduce`` and works, in the order of the queue. Kineto does not record which thread serves which group,
so that is concluded: a thread serves one group all along, each group has at most two threads and must have as many
spans of a name as it queued, and no work can begin before it was queued. If several assignments of threads to groups
are possible, only the times on which all of them agree are kept.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rooflight.network.collectives import CollectiveKind, kind_of
from rooflight.network.groups import RankGroup
from rooflight.records.signature import OpSignature

SPAN: Final = "gloo:"
_CALLERS: Final = ("gloo:send", "gloo:recv", "gloo:recvAnySource")
"""Spans that begin inside the op, on its own thread."""

_THREADS: Final = 2
"""Threads of each gloo group (ProcessGroupGloo's options). With more, no assignment would be found."""

_MOST_TRIES: Final = 20_000
_MOST_ASSIGNMENTS: Final = 64

SPAN_NAMES: Final = {
    CollectiveKind.ALL_REDUCE: "gloo:all_reduce",
    CollectiveKind.ALL_GATHER: "gloo:all_gather",
    CollectiveKind.REDUCE_SCATTER: "gloo:reduce_scatter",
    CollectiveKind.ALL_TO_ALL: "gloo:all_to_all",
    CollectiveKind.BROADCAST: "gloo:broadcast",
    CollectiveKind.REDUCE: "gloo:reduce",
    CollectiveKind.GATHER: "gloo:gather",
    CollectiveKind.SCATTER: "gloo:scatter",
    CollectiveKind.BARRIER: "gloo:barrier",
}
"""What the threads of gloo call their work."""

Interval = tuple[int, int]
_Assignment = Mapping[int, Hashable]
"""Which group each thread serves."""


@dataclass(frozen=True, slots=True)
class Event:
    """One op or kernel in Kineto's trace. ``correlation`` is the same for a kernel and the op that launched it."""

    name: str
    start_ns: int
    end_ns: int
    thread: int
    correlation: int
    on_device: bool


@dataclass(frozen=True, slots=True)
class Launch:
    """A call of a collective op: its record, its signature, and when and on which thread the host was in it."""

    record: int
    op: OpSignature
    start_ns: int
    end_ns: int
    thread: int

    @property
    def group(self) -> Hashable:
        """An identifier of its process group."""
        group = RankGroup.of(self.op)
        return group.name or group.ranks or group.size


@dataclass(frozen=True, slots=True)
class StepCollectives:
    """The collectives that a step queued, and all spans that began before the next step did."""

    launches: Sequence[Launch]
    spans: Sequence[Event]


def worker_threads(events: Sequence[Event]) -> set[int]:
    """Threads that work for a process group: everything that runs on them is part of a collective."""
    return {event.thread for event in events if event.name.startswith(SPAN) and event.name not in _CALLERS}


def join_spans(steps: Sequence[StepCollectives]) -> list[dict[int, Interval]]:
    """For each step, by record, when its collective began and ended (ns). Records for which that is not certain are
    left out.
    """
    queues = [_Queues(step) for step in steps]
    assignments = _Search(queues).assignments()
    found: list[dict[int, Interval]] = []
    for step, queue in zip(steps, queues, strict=True):
        told = [queue.intervals(assignment) for assignment in assignments]
        agreed = told[0].items() if told else ()
        found.append({record: when for record, when in agreed if all(one.get(record) == when for one in told)})
        found[-1] |= _calls(step)
    return found


class _Queues:
    def __init__(self, step: StepCollectives) -> None:
        names = {span.name for span in step.spans}
        queued: dict[str, list[tuple[Launch, int]]] = defaultdict(list)
        for launch in sorted(step.launches, key=lambda launch: launch.start_ns):
            name, count = _expected(launch.op, names)
            if name:
                queued[name].append((launch, count))
        spans: dict[str, list[Event]] = defaultdict(list)
        for span in sorted(step.spans, key=lambda span: span.start_ns):
            spans[span.name].append(span)
        # a name with more or fewer spans than were queued cannot be joined
        self.names = [name for name in queued if sum(count for _, count in queued[name]) == len(spans[name])]
        self.spans = {name: spans[name] for name in self.names}
        self.queued = {name: queued[name] for name in self.names}

    def left(self) -> dict[tuple[str, Hashable], int]:
        counts: Counter[tuple[str, Hashable]] = Counter()
        for name, entries in self.queued.items():
            for launch, count in entries:
                counts[name, launch.group] += count
        return counts

    def pairs(self, assignment: _Assignment) -> Iterator[tuple[Launch, list[Event]]]:
        for name, entries in self.queued.items():
            waiting: dict[Hashable, list[Event]] = defaultdict(list)
            for span in reversed(self.spans[name]):
                waiting[assignment[span.thread]].append(span)
            for launch, count in entries:
                yield launch, [waiting[launch.group].pop() for _ in range(count)]

    def intervals(self, assignment: _Assignment) -> dict[int, Interval]:
        return {
            launch.record: (min(span.start_ns for span in spans), max(span.end_ns for span in spans))
            for launch, spans in self.pairs(assignment)
            if spans
        }

    def allows(self, assignment: _Assignment) -> bool:
        """Whether no work begins before it was queued."""
        return all(span.start_ns >= launch.start_ns for launch, spans in self.pairs(assignment) for span in spans)


class _Search:
    """Looks for the assignments of threads to groups that all steps allow, thread by thread, depth first."""

    def __init__(self, queues: Sequence[_Queues]) -> None:
        self._queues = queues
        self._spans: dict[int, Counter[tuple[int, str]]] = defaultdict(Counter)  # of each thread, by step and name
        self._left: dict[tuple[int, str, Hashable], int] = {}  # spans that each group must still get, by step and name
        for number, queue in enumerate(queues):
            self._left |= {(number, name, group): count for (name, group), count in queue.left().items()}
            for name in queue.names:
                for span in queue.spans[name]:
                    self._spans[span.thread][number, name] += 1
        self._groups = list(dict.fromkeys(group for *_, group in self._left))
        # the busiest first: they fit the fewest groups
        self._threads = sorted(self._spans, key=lambda thread: -sum(self._spans[thread].values()))
        self._assigned: dict[int, Hashable] = {}
        self._found: list[_Assignment] = []
        self._tries = 0

    def assignments(self) -> list[_Assignment]:
        """All possible assignments; none if there are too many to try."""
        return self._found if self._assign(0) else []

    def _assign(self, position: int) -> bool:
        """Try all groups for the threads from ``position`` on. False when that would take too long."""
        self._tries += 1
        if self._tries > _MOST_TRIES or len(self._found) > _MOST_ASSIGNMENTS:
            return False
        if position == len(self._threads):
            if all(queue.allows(self._assigned) for queue in self._queues):
                self._found.append(dict(self._assigned))
            return True
        thread = self._threads[position]
        for group in self._groups:
            if not self._fits(thread, group):
                continue
            self._assigned[thread] = group
            self._count(thread, group, -1)
            in_time = self._assign(position + 1)
            self._count(thread, group, 1)
            del self._assigned[thread]
            if not in_time:
                return False
        return True

    def _fits(self, thread: int, group: Hashable) -> bool:
        """Whether the group can have one more thread, and still needs all the spans of this one."""
        if sum(other == group for other in self._assigned.values()) == _THREADS:
            return False
        return all(self._left.get((*key, group), 0) >= count for key, count in self._spans[thread].items())

    def _count(self, thread: int, group: Hashable, sign: int) -> None:
        for key, count in self._spans[thread].items():
            self._left[*key, group] += sign * count


def _calls(step: StepCollectives) -> dict[int, Interval]:
    """Sends and receives: their span begins inside the op, on its own thread."""
    by_thread: dict[int, list[Event]] = defaultdict(list)
    for span in sorted(step.spans, key=lambda span: span.start_ns):
        if span.name in _CALLERS:
            by_thread[span.thread].append(span)
    found: dict[int, Interval] = {}
    for launch in step.launches:
        if kind_of(launch.op.name) not in (CollectiveKind.SEND, CollectiveKind.RECEIVE):
            continue
        spans = by_thread[launch.thread]
        starts = [span.start_ns for span in spans]
        inside = spans[bisect_left(starts, launch.start_ns) : bisect_right(starts, launch.end_ns)]
        if len(inside) == 1:
            found[launch.record] = inside[0].start_ns, inside[0].end_ns
    return found


def _expected(op: OpSignature, present: set[str]) -> tuple[str, int]:
    """Name and number of the spans that a collective writes; the name is empty if the calling thread writes them."""
    kind = kind_of(op.name)
    if kind is CollectiveKind.REDUCE_SCATTER and SPAN_NAMES[kind] not in present:
        # gloo has no reduce-scatter of its own: it reduces everything everywhere, tensor by tensor
        if op.name == "c10d::reduce_scatter_":
            return SPAN_NAMES[CollectiveKind.ALL_REDUCE], RankGroup.of(op).size
        sources = [name for name in op.input_names if name.startswith("input")]
        return SPAN_NAMES[CollectiveKind.ALL_REDUCE], max(1, len(sources))
    if kind is None or op.name == "c10d::monitored_barrier_":
        return "", 0
    return SPAN_NAMES.get(kind, ""), 1
