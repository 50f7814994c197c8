"""Why the devices of a trace were idle: every moment in which no work ran has one cause.

Work begins when the host has launched it and the device gets to it. So an idle stretch has two parts: until the work
that ends it was launched nothing was queued, and what the host did meanwhile is the cause; after that the work was
queued and had not begun. A launch made before the device was idle is not late. Waiting of the host for the device is a
cause beyond its own end: what follows it would have been done while the device worked. Not so what takes longer than
launching does: a host that then runs 0.4 ms of Python is late by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from rooflight.records.account import Cause, Place
from rooflight.records.measurement import Float64
from rooflight.records.session import Flags, Int8, Int64
from rooflight.records.timeline import Idle, IdleCause, IdleDetail, Waited
from rooflight.sources.traces.file.trace import UNKNOWN, Spans, WorkKind, enclosing, is_loader, own_line, parents_of
from rooflight.sources.traces.ownership import Ownership


@dataclass(frozen=True, slots=True)
class Covered:
    """Intervals that do not touch each other, in order."""

    start: Int64
    stop: Int64

    @classmethod
    def by(cls, start: Int64, stop: Int64) -> Covered:
        """What at least one of the given intervals covers; those that end before they begin cover nothing."""
        some = stop > start
        start, stop = start[some], stop[some]
        order = np.argsort(start, kind="stable")
        start, reached = start[order], np.maximum.accumulate(stop[order]) if len(order) else stop
        first = np.ones(len(start), dtype=np.bool_)
        first[1:] = start[1:] > reached[:-1]
        last = np.roll(first, -1)
        return cls(start[first], reached[last])

    @property
    def length(self) -> int:
        """Nanoseconds in all."""
        return int((self.stop - self.start).sum())

    def within(self, begin: Int64, end: Int64) -> Int64:
        """Nanoseconds covered between each ``begin`` and its ``end``, which is not before it."""
        return np.asarray(self._before(end) - self._before(begin), dtype=np.int64)

    def at(self, moment: Int64) -> Flags:
        """Whether each moment is covered: an interval has its begin, not its end."""
        place = np.searchsorted(self.start, moment, side="right") - 1
        if not len(self.start):
            return np.zeros(len(moment), dtype=np.bool_)
        return np.asarray((place >= 0) & (moment < self.stop[np.maximum(place, 0)]), dtype=np.bool_)

    def closed(self, short: int) -> Covered:
        """The same with all gaps of less than ``short`` closed."""
        apart = self.start[1:] - self.stop[:-1] >= short
        return Covered(self.start[np.append(True, apart)], self.stop[np.append(apart, True)]) if len(apart) else self

    def gaps(self, begin: int, end: int) -> Covered:
        """What is not covered from ``begin`` to ``end``, which enclose all intervals."""
        start, stop = np.append(begin, self.stop), np.append(self.start, end)
        some = stop > start
        return Covered(start[some], stop[some])

    def _before(self, moment: Int64) -> Int64:
        if not len(self.start):
            return np.zeros(len(moment), dtype=np.int64)
        place = np.searchsorted(self.start, moment, side="right")
        whole = np.concatenate([[0], np.cumsum(self.stop - self.start)])
        over = np.where(place > 0, np.maximum(self.stop[place - 1] - moment, 0), 0)
        return np.asarray(whole[place] - over, dtype=np.int64)


_SYNC: Final = re.compile(
    r"^(cuda|hip|cu)(Ctx|Device|Stream|Event)Synchronize|^hipMemcpyWithStream$|^(cuda|hip|cu)Mem(cpy|set)(?!.*Async)"
)
_LAUNCH: Final = re.compile(r"Launch|Memcpy|Memset|^(cuda|hip|cu)Graph", re.IGNORECASE)
_OF_RANKS: Final = re.compile(r"^(gloo|mpi):|barrier", re.IGNORECASE)
_PAGEABLE: Final = "Pageable ->"
_TO_PAGEABLE: Final = "-> Pageable"
_OF_PROFILER: Final = ("Activity Buffer", "Buffer Flush", "Instrumentation", "Resource")
_OF_DRIVER: Final = (
    "Lazy Function Load",
    "Runtime Triggered Module Load",
    "Driver Compiler",
    "UVM Activity Init",
)
_LONG_CALL_NS: Final = 10_000
"""A call of the driver that is no launch counts from this on: shorter ones are part of what the host does anyway."""
_LONG_LAUNCH_NS: Final = 100_000
"""Launches take 3 to 10 µs. One that takes so long while the device is idle loads its kernel, or waits for a lock."""
_APART_NS: Final = 10_000
"""The clocks of host and device differ by some µs: a wait may seem to end before the work that it waited for."""

_OF_HOST: Final = (IdleCause.HOST, IdleCause.SYNC, IdleCause.PAGEABLE_COPY, IdleCause.DATA_LOADER, IdleCause.DRIVER)
"""Causes that a line of the program may have."""

CAUSES: Final = tuple(IdleCause)
_CAUSE_OF: Final = {
    IdleCause.SYNC: Cause.SYNC,
    IdleCause.PAGEABLE_COPY: Cause.COPIES,
    IdleCause.DATA_LOADER: Cause.LOADER,
    IdleCause.RANK: Cause.RANK,
    IdleCause.DRIVER: Cause.ALLOCATOR,
    IdleCause.PROFILER: Cause.PROFILER,
    IdleCause.LAUNCH: Cause.LAUNCHES,
    IdleCause.QUEUED: Cause.LAUNCHES,
    IdleCause.UNKNOWN: Cause.UNKNOWN,
}
_SHORT_NS: Final = 10_000
"""Between two ops or launches of the host: so little is part of launching."""
_LONG_NS: Final = 400_000
"""Between two ops, where no line is known: Python alone hardly needs so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleTime:
    """Idle stretches in order, in nanoseconds; ``cause[i]`` is a place in ``CAUSES``. ``ended_by[i]`` is the work that
    ended the gap in which stretch i lies, ``UNKNOWN`` for the last gap of the trace. ``names[i]`` is what the host did,
    ``places[i]`` the line of the program that it was in; ``launching[i]`` and ``python[i]`` are nanoseconds in which a
    late host was in ops and launches, or between them.
    """

    start: Int64
    stop: Int64
    cause: Int8
    ended_by: Int64
    names: tuple[str, ...]
    places: tuple[Place | None, ...]
    launching: Int64
    python: Int64

    def waits(self, begin: Int64, end: Int64) -> tuple[Waited, ...]:
        """Why the device was idle between each ``begin`` and its ``end``, in the mean, by cause and place."""
        sums = dict[tuple[Cause, Place | None], Float64]()
        reached = np.searchsorted(self.stop, begin, side="right").tolist()
        for step, (at, first, last) in enumerate(zip(reached, begin.tolist(), end.tolist(), strict=True)):
            until = int(np.searchsorted(self.start, last))
            inside = np.minimum(self.stop[at:until], last) - np.maximum(self.start[at:until], first)
            shares = inside / (self.stop[at:until] - self.start[at:until])
            for place, share in enumerate(shares.tolist(), start=at):
                where = self.places[place] or (Place(function=self.names[place]) if self.names[place] else None)
                for cause, nanoseconds in self._split(place):
                    seconds = sums.setdefault((cause, where), np.zeros(len(begin)))
                    seconds[step] += nanoseconds * share * 1e-9
        return tuple(
            Waited(cause=cause, seconds=float(each.mean()), seen=int(np.count_nonzero(each)), where=where)
            for (cause, where), each in sorted(sums.items(), key=lambda each: -each[1].sum())
            if each.any()
        )

    def _split(self, at: int) -> Iterator[tuple[Cause, float]]:
        """The causes of a stretch, of which a late host has several, with their nanoseconds."""
        length = int(self.stop[at] - self.start[at])
        if (cause := CAUSES[self.cause[at]]) is not IdleCause.HOST:
            yield _CAUSE_OF[cause], length
            return
        launching, python = int(self.launching[at]), int(self.python[at])
        yield Cause.LAUNCHES, launching
        yield Cause.PYTHON, python
        yield Cause.UNKNOWN, length - launching - python

    def within(self, begin: Int64, end: Int64) -> list[Idle]:
        """Seconds by cause between each ``begin`` and its ``end``."""
        rows = [
            Covered.by(self.start[mine], self.stop[mine]).within(begin, end)
            for mine in (self.cause == number for number in range(len(CAUSES)))
        ]
        return [
            Idle(**{cause.field: int(row[place]) * 1e-9 for cause, row in zip(CAUSES, rows, strict=True)})
            for place in range(len(begin))
        ]

    def details(self) -> tuple[IdleDetail, ...]:
        """How often and how long each cause held the device up, the longest in sum first."""
        lengths = (self.stop - self.start) * 1e-9
        found = []
        for number, cause in enumerate(CAUSES):
            mine = np.flatnonzero(self.cause == number)
            if not len(mine):
                continue
            by_name: dict[str, float] = {}
            for place in mine.tolist():
                by_name[self.names[place]] = by_name.get(self.names[place], 0.0) + float(lengths[place])
            mostly_in = max(by_name, key=lambda name: by_name[name])
            found.append(
                IdleDetail(
                    cause=cause,
                    seconds=float(lengths[mine].sum()),
                    count=len(mine),
                    median_s=float(np.median(lengths[mine])),
                    longest_s=float(lengths[mine].max()),
                    mostly_in=mostly_in,
                    mostly_in_s=by_name[mostly_in],
                )
            )
        return tuple(sorted(found, key=lambda detail: -detail.seconds))


def idle_time(owned: Ownership, busy: Covered) -> IdleTime:
    """Every moment of the trace's window in which no work ran, with its cause."""
    gaps = busy.gaps(*owned.trace.window)
    ended_by, queued, unknown = _ends(owned, gaps)
    host = _Host(owned)
    waited = np.where(ended_by != UNKNOWN, host.waiting_at(gaps.start), UNKNOWN)
    moments = [gaps.start, gaps.stop, queued, *(edge for each in host.layers for edge in (each.start, each.stop))]
    edges = np.unique(np.concatenate(moments))
    start, stop = edges[:-1], edges[1:]
    gap = np.searchsorted(gaps.start, start, side="right") - 1
    inside = (gap >= 0) & (start < gaps.stop[np.maximum(gap, 0)]) if len(gaps.start) else np.zeros(len(start), bool)
    start, stop, gap = start[inside], stop[inside], gap[inside]
    waits = waited[gap]
    of_copy = (waits != UNKNOWN) & host.copies_from_pageable[waits]
    reasons = {  # the first that holds
        IdleCause.UNKNOWN: unknown[gap],
        IdleCause.QUEUED: queued[gap] <= gaps.start[gap],
        IdleCause.LAUNCH: start >= queued[gap],
        IdleCause.PROFILER: host.profiler.at(start),
        IdleCause.DATA_LOADER: host.loader.at(start),
        IdleCause.RANK: host.ranks.at(start),
        IdleCause.DRIVER: host.driver.at(start),
        IdleCause.PAGEABLE_COPY: host.pageable.at(start) | of_copy,
        IdleCause.SYNC: host.syncs.at(start) | ((waits != UNKNOWN) & (start < host.pauses_from(gaps.start)[gap])),
    }
    numbers = [CAUSES.index(each) for each in reasons]
    cause = np.select([*reasons.values()], numbers, CAUSES.index(IdleCause.HOST)).astype(np.int8)
    first = np.ones(len(start), dtype=np.bool_)  # stretches of one gap and one cause that follow each other are one
    first[1:] = (gap[1:] != gap[:-1]) | (cause[1:] != cause[:-1])
    last = np.roll(first, -1)
    start, stop, gap, cause = start[first], stop[last], gap[first], cause[first]
    names, places = host.names((start, stop), cause, waited[gap], ended_by[gap])
    launching, python = host.late(start, stop, known=np.array([place is not None for place in places], dtype=np.bool_))
    return IdleTime(start=start, stop=stop, cause=cause, ended_by=ended_by[gap], names=tuple(names),
                    places=tuple(places), launching=launching, python=python)  # fmt: skip


def _ends(owned: Ownership, gaps: Covered) -> tuple[Int64, Int64, Flags]:
    """By gap the work that ended it or ``UNKNOWN``, when that was queued, and whether its launch is unknown."""
    work, calls = owned.trace.work, owned.trace.calls
    order = np.argsort(work.start, kind="stable")
    at = np.searchsorted(work.start[order], gaps.stop, side="left")
    some = at < len(order)
    ended_by = np.where(some, order[np.minimum(at, len(order) - 1)], UNKNOWN)
    some &= work.start[ended_by] == gaps.stop
    ended_by = np.where(some, ended_by, UNKNOWN)
    call = np.where(some, owned.call[ended_by], UNKNOWN)
    launched = calls.stop[call] if len(calls) else np.zeros(len(call), dtype=np.int64)
    queued = np.where(call != UNKNOWN, np.clip(launched, gaps.start, gaps.stop), gaps.stop)
    return ended_by, queued, some & (call == UNKNOWN)


class _Host:
    def __init__(self, owned: Ownership) -> None:
        self._owned, self._trace = owned, owned.trace
        trace, calls = owned.trace, owned.trace.calls
        pageable = np.zeros(len(calls), dtype=np.bool_)
        pageable[_calls_of_copies(owned, _PAGEABLE)] = True
        is_sync, launches = waits_for_device(owned), trace.named(calls, _LAUNCH.search)
        # torch waits for a copy from pageable memory by a call of its own, inside the same op
        around = owned.nesting.call_op
        copying = np.isin(around, around[pageable & (around != UNKNOWN)])
        self._waits = np.flatnonzero(is_sync | pageable)[np.argsort(calls.start[is_sync | pageable], kind="stable")]
        self.copies_from_pageable = np.append(pageable | (is_sync & copying), False)  # the last is that of UNKNOWN
        copies = self.copies_from_pageable[:-1]
        in_driver = ~is_sync & ~pageable & (calls.length >= np.where(launches, _LONG_LAUNCH_NS, _LONG_CALL_NS))
        of_driver = trace.named(trace.overhead, lambda name: name.startswith(_OF_DRIVER))
        of_profiler = trace.named(trace.overhead, lambda name: name.startswith(_OF_PROFILER))
        self._driver_calls = calls.where(in_driver)
        self._loading = trace.ranges.where(trace.named(trace.ranges, is_loader))
        self.driver = _covered(self._driver_calls, trace.overhead.where(of_driver))
        self.profiler = _covered(trace.overhead.where(of_profiler))
        self.syncs = _covered(calls.where(is_sync & ~copies))
        self.pageable = _covered(calls.where(copies))
        self.loader = _covered(self._loading)
        waiting = (each.where(trace.named(each, _OF_RANKS.search)) for each in (trace.ranges, trace.ops))
        self.ranks = _covered(*waiting)
        self._inside = _covered(trace.ops, calls)
        begin, end = trace.window
        edges = np.concatenate([self._inside.start, self._inside.stop, [begin, end]])
        self.pauses = self._inside.closed(_LONG_NS).gaps(int(edges.min()), int(edges.max()))
        self.layers = (self.driver, self.profiler, self.syncs, self.pageable, self.loader, self.ranks, self.pauses)

    def pauses_from(self, moment: Int64) -> Int64:
        """From when on, at each moment or later, the host next ran Python for long."""
        pauses = np.append(self.pauses.start, np.iinfo(np.int64).max)
        return np.asarray(pauses[np.searchsorted(self.pauses.stop, moment, side="right")])

    def waiting_at(self, moment: Int64) -> Int64:
        """The call in which the host waited for the device at each moment, ``UNKNOWN`` where it did not."""
        calls, waits = self._trace.calls, self._waits
        if not len(waits):
            return np.full(len(moment), UNKNOWN, dtype=np.int64)
        reached = np.maximum.accumulate(calls.stop[waits])
        place = np.searchsorted(calls.start[waits], moment, side="right") - 1
        known = (place >= 0) & (moment < reached[np.maximum(place, 0)] + _APART_NS)
        return np.where(known, waits[np.maximum(place, 0)], UNKNOWN)

    def late(self, start: Int64, stop: Int64, known: Flags) -> tuple[Int64, Int64]:
        """Nanoseconds of each stretch in which the host was in ops and launches, or shortly between them, and in which
        it ran Python: where the line is ``known``, or not for long.
        """
        near, mid = self._inside.closed(_SHORT_NS), self._inside.closed(_LONG_NS)
        launching = near.within(start, stop)
        return launching, np.where(known, stop - start, mid.within(start, stop)) - launching

    def names(
        self, stretch: tuple[Int64, Int64], cause: Int8, waited: Int64, ended_by: Int64
    ) -> tuple[list[str], list[Place | None]]:
        """What held the device up in each stretch, by name: an op, a call or an annotation, and the line of the program
        that its host was in; empty of others. And this line alone.
        """
        start, stop = stretch
        found, lines = [""] * len(start), list[Place | None]([None]) * len(start)
        for spans, name in ((self._driver_calls, IdleCause.DRIVER), (self._loading, IdleCause.DATA_LOADER)):
            mine = _of_causes(cause, name)
            order = np.argsort(spans.start, kind="stable")
            places = np.searchsorted(spans.start[order], start[mine], side="right") - 1  # the last that had begun
            for place, at in zip(mine.tolist(), places.tolist(), strict=True):
                found[place] = self._trace.names[spans.name[order[at]]] if at >= 0 else ""
        mine = _of_causes(cause, IdleCause.SYNC, IdleCause.PAGEABLE_COPY)
        calls = np.where(waited[mine] != UNKNOWN, waited[mine], self.waiting_at(start[mine]))
        for place, call in zip(mine.tolist(), calls.tolist(), strict=True):
            found[place] = self._waiting(call)
        of_host = _of_causes(cause, *_OF_HOST)
        moment = np.where(cause == CAUSES.index(IdleCause.HOST), (start + stop) // 2, start)[of_host]
        for place, line in zip(of_host.tolist(), self._lines(moment, ended_by[of_host]), strict=True):
            found[place], lines[place] = ", ".join(filter(None, (found[place], str(line or "")))), line
        return found, lines

    def _lines(self, moment: Int64, ended_by: Int64) -> list[Place | None]:
        """The innermost line of the program at each moment, of the thread that then launched work."""
        lines, calls = self._trace.lines, self._trace.calls
        if not len(lines) or not len(calls):
            return list[Place | None]([None]) * len(moment)
        thread = calls.thread[self._owned.call[ended_by]]
        main = np.bincount(lines.thread).argmax()  # the backward pass has a thread without lines
        thread = np.where(np.isin(thread, lines.thread), thread, main).astype(np.int32)
        at = Spans(start=moment, stop=moment, thread=thread, name=thread)
        frames = enclosing(lines, *parents_of(lines), at).tolist()
        return [None if frame == UNKNOWN else own_line(self._trace.names[lines.name[frame]]) for frame in frames]

    def _waiting(self, call: int) -> str:
        if call == UNKNOWN:
            return ""
        *_, outermost = UNKNOWN, *self._owned.nesting.around(int(self._owned.nesting.call_op[call]))
        if outermost == UNKNOWN:
            return self._trace.names[int(self._trace.calls.name[call])]
        return self._trace.op_name(outermost)


def waits_for_device(owned: Ownership) -> Flags:
    """Which calls wait for the device: syncs, and copies from it to pageable memory, which return when all is done."""
    found = owned.trace.named(owned.trace.calls, _SYNC.search)
    found[_calls_of_copies(owned, _TO_PAGEABLE)] = True
    return found


def _calls_of_copies(owned: Ownership, ends: str) -> Int64:
    work = owned.trace.work
    calls = owned.call[(work.kind == WorkKind.COPY) & owned.trace.named(work, lambda name: ends in name)]
    return np.asarray(calls[calls != UNKNOWN], dtype=np.int64)


def _covered(*spans: Spans) -> Covered:
    return Covered.by(np.concatenate([each.start for each in spans]), np.concatenate([each.stop for each in spans]))


def _of_causes(cause: Int8, *causes: IdleCause) -> Int64:
    return np.flatnonzero(np.isin(cause, [CAUSES.index(each) for each in causes]))
