"""When a collective of gloo ran, and on which tensors: its op only queues it, a thread of gloo's own does the work.

The thread writes an annotation such as ``gloo:all_reduce``, in the order of the queue. A trace does not tell which
group a call or a thread is of, so calls are joined to annotations where there is one group of several ranks only.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import numpy as np

from rooflight.capture.time.collectives import SPAN, SPAN_NAMES
from rooflight.network.collectives import kind_of
from rooflight.traces.collectives import Groups
from rooflight.traces.trace import Trace

_CALLED: Final = "c10d::"


def gloo_spans(trace: Trace) -> dict[int, int]:
    """By op of ``c10d`` the range in which its collective ran. Left out are collectives of which the trace has another
    number of calls than of ranges, as where it begins or ends between the two.
    """
    if Groups.of(trace.head).only is None:
        return {}
    queued: dict[str, list[int]] = defaultdict(list)
    for op in np.argsort(trace.ops.start, kind="stable").tolist() if _has_spans(trace) else ():
        kind = kind_of(name) if (name := trace.names[trace.ops.name[op]]).startswith(_CALLED) else None
        if kind in SPAN_NAMES:
            queued[SPAN_NAMES[kind]].append(op)
    ran: dict[str, list[int]] = defaultdict(list)
    for index in np.argsort(trace.ranges.start, kind="stable").tolist() if queued else ():
        name = trace.names[trace.ranges.name[index]]
        if name in queued:
            ran[name].append(index)
    return {
        op: index
        for name, ops in queued.items()
        if len(ops) == len(ran[name])
        for op, index in zip(ops, ran[name], strict=True)
        if trace.ranges.start[index] >= trace.ops.start[op]
    }


def _has_spans(trace: Trace) -> bool:
    return any(name.startswith(SPAN) for name in trace.names)
