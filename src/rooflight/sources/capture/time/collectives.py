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
from itertools import count as count_from
from itertools import islice
from typing import Final

from rooflight.hardware.network.collectives import CollectiveKind, kind_of
from rooflight.hardware.network.groups import RankGroup
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
    assignments = _assignments(queues)
    found: list[dict[int, Interval]] = []
    for step, queue in zip(steps, queues, strict=True):
        possible = [queue.intervals(assignment) for assignment in assignments]
        agreed = possible[0].items() if possible else ()
        found.append({record: when for record, when in agreed if all(one.get(record) == when for one in possible)})
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
        names = {name for name in queued if sum(count for _, count in queued[name]) == len(spans[name])}
        self.spans = {name: spans[name] for name in queued if name in names}
        self.queued = {name: queued[name] for name in queued if name in names}

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


def _assignments(queues: Sequence[_Queues]) -> list[_Assignment]:
    spans: dict[int, Counter[tuple[int, str]]] = defaultdict(Counter)  # of each thread, by step and name
    queued: Counter[tuple[int, str, Hashable]] = Counter()  # spans that each group must get, by step and name
    for number, queue in enumerate(queues):
        for name, entries in queue.queued.items():
            for launch, count in entries:
                queued[number, name, launch.group] += count
            for span in queue.spans[name]:
                spans[span.thread][number, name] += 1
    groups = list(dict.fromkeys(group for *_, group in queued))
    threads = sorted(spans, key=lambda thread: -spans[thread].total())  # the busiest first: they fit the fewest groups
    tries = count_from(1)

    def assign(given: dict[int, Hashable], left: Counter[tuple[int, str, Hashable]]) -> Iterator[_Assignment]:
        if next(tries) > _MOST_TRIES:
            return
        if len(given) == len(threads):
            if all(queue.allows(given) for queue in queues):
                yield given
            return
        thread = threads[len(given)]
        for group in groups:
            needs = Counter({(*key, group): count for key, count in spans[thread].items()})
            if list(given.values()).count(group) < _THREADS and needs <= left:
                yield from assign({**given, thread: group}, left - needs)

    found = list(islice(assign({}, queued), _MOST_ASSIGNMENTS + 1))
    return found if len(found) <= _MOST_ASSIGNMENTS and next(tries) <= _MOST_TRIES else []


def _calls(step: StepCollectives) -> dict[int, Interval]:
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
