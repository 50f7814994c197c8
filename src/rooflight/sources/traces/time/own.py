"""Own time: pieces of work that run at the same time share it, so that what they take sums to the busy time.

An instant belongs to computing kernels where any runs, else to collectives, else to copies; those of the class that run
then have equal parts of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from rooflight.records.account import Cause
from rooflight.records.measurement import Float64
from rooflight.records.session import Flags, Int32, Int64
from rooflight.records.timeline import Waited
from rooflight.sources.traces.file.trace import UNKNOWN, Trace, WorkKind
from rooflight.sources.traces.ops.collectives import RUNS_COLLECTIVE
from rooflight.sources.traces.ownership import Ownership

_WITH_HOST: Final = re.compile(r"HtoD|DtoH|HostToDevice|DeviceToHost|Pageable|Pinned")


@dataclass(frozen=True, slots=True)
class OwnTime:
    """Nanoseconds of each piece of a trace's work that are its own; ``crosses``: it copies from or to the host;
    ``sends``: it is a collective.
    """

    trace: Trace
    own: Float64
    crosses: Flags
    sends: Flags

    @classmethod
    def of(cls, trace: Trace) -> OwnTime:
        """Of all work of a trace."""
        work = trace.work
        copies = work.kind == WorkKind.COPY
        collective = (work.kind == WorkKind.KERNEL) & trace.named(work, RUNS_COLLECTIVE.search)
        edges = np.unique(np.concatenate([work.start, work.stop]))
        first, last = np.searchsorted(edges, work.start), np.searchsorted(edges, work.stop)
        free, own = np.ones(max(0, len(edges) - 1), dtype=np.bool_), np.zeros(len(work))
        for mine in (~copies & ~collective, collective, copies):
            change = np.bincount(first[mine], minlength=len(edges)) - np.bincount(last[mine], minlength=len(edges))
            running = np.cumsum(change)[:-1]
            shares = np.where(free & (running > 0), np.diff(edges) / np.maximum(running, 1), 0.0)
            until = np.concatenate([[0.0], np.cumsum(shares)])
            own[mine] = until[last[mine]] - until[first[mine]]
            free &= running == 0
        return cls(trace, own, copies & trace.named(work, _WITH_HOST.search), collective)

    def of_ops(self, owned: Ownership) -> Float64:
        """Seconds of the work of each op that are its own, but for copies from and to the host."""
        mine = (owned.accounted != UNKNOWN) & ~self.crosses
        ops = owned.accounted[mine]
        return np.asarray(np.bincount(ops, self.own[mine], len(owned.trace.ops)) * 1e-9, dtype=np.float64)

    def waits(self, accounted: Int32, begin: Int64, end: Int64) -> Iterator[Waited]:
        """Copies from and to the host while no kernel ran, and collectives of no op while nothing was computed, in the
        mean of the stretches; ``accounted`` is the op of each piece of work.
        """
        without_op = self.sends & (accounted == UNKNOWN)
        for cause, mine in ((Cause.COPIES, self.crosses), (Cause.COMMUNICATION, without_op)):
            start, own = self.trace.work.start[mine], self.own[mine] * 1e-9
            step = np.searchsorted(begin, start, side="right") - 1
            inside = (step >= 0) & (start < end[np.maximum(step, 0)])
            sums = np.bincount(step[inside], own[inside], len(begin))
            if sums.any():
                yield Waited(cause=cause, seconds=float(sums.mean()), seen=int(np.count_nonzero(sums)))
