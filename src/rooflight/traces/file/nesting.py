"""Which host op ran inside which, and which was open when work was launched."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rooflight.records.session import Int32
from rooflight.traces.file.trace import UNKNOWN, Spans, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Nesting:
    """``parent[i]`` is the innermost op around op i on its thread, ``order`` has parents before what is inside them.
    ``call_op[i]`` is the innermost op open when call i began. ``UNKNOWN`` where there is none.
    """

    parent: Int32
    order: Int32
    call_op: Int32


def nested(trace: Trace) -> Nesting:
    """How the host's ops and calls lie in each other."""
    ops, calls = trace.ops, trace.calls
    parent, order = parents_of(ops)
    return Nesting(parent=parent, order=order, call_op=enclosing(ops, parent, order, calls))


def parents_of(spans: Spans) -> tuple[Int32, Int32]:
    """The innermost span around each, and an order with parents before what is inside them. Of spans that begin at the
    same time the longer is outside; of equal ones the earlier in the file.
    """
    order = np.lexsort((np.arange(len(spans)), -spans.stop, spans.start, spans.thread)).astype(np.int32)
    parent = np.full(len(spans), UNKNOWN, dtype=np.int32)
    stops, threads, starts = spans.stop.tolist(), spans.thread.tolist(), spans.start.tolist()
    opened: list[int] = []
    thread = None
    for index in order.tolist():
        if threads[index] != thread:
            thread = threads[index]
            opened.clear()
        start = starts[index]
        while opened and stops[opened[-1]] <= start:
            opened.pop()
        if opened:
            parent[index] = opened[-1]
        opened.append(index)
    return parent, order


def enclosing(outer: Spans, parent: Int32, order: Int32, inner: Spans) -> Int32:
    """The innermost span of ``outer`` that was open on the thread of each of ``inner`` when it began."""
    found = np.full(len(inner), UNKNOWN, dtype=np.int32)
    for thread in np.unique(inner.thread).tolist():
        mine = np.flatnonzero(inner.thread == thread)
        around = order[outer.thread[order] == thread]  # sorted by start
        if not len(around):
            continue
        at = np.searchsorted(outer.start[around], inner.start[mine], side="right") - 1
        begun = np.where(at >= 0, around[np.maximum(at, 0)], UNKNOWN)
        waiting = mine
        while len(waiting):  # the last begun may be over: then what is around it
            over = (begun != UNKNOWN) & (outer.stop[begun] <= inner.start[waiting])
            found[waiting[~over]] = begun[~over]
            waiting, begun = waiting[over], parent[begun[over]]
    return found
