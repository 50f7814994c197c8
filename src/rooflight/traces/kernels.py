"""The kernels of a trace by name, each with the op that most of its time belongs to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from rooflight.records.session import Flags
from rooflight.records.timeline import KernelTime
from rooflight.traces.ownership import Ownership
from rooflight.traces.trace import UNKNOWN, Trace, WorkKind


def all_of(trace: Trace) -> Flags:
    """All work of a trace."""
    return np.ones(len(trace.work), dtype=np.bool_)


def kernels_by_name(parts: Iterable[tuple[Trace, Ownership, Flags]]) -> tuple[KernelTime, ...]:
    """All kernels of the ``chosen`` work of traces, those of the same name together, the longest first."""
    counts: dict[str, int] = defaultdict(int)
    seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for trace, owned, chosen in parts:
        work = trace.work
        kernels = chosen & (work.kind == WorkKind.KERNEL)
        columns = (work.name, owned.accounted, (work.stop - work.start) * 1e-9)
        for name, op, length in zip(*(column[kernels].tolist() for column in columns), strict=True):
            kernel = trace.names[name]
            counts[kernel] += 1
            seconds[kernel]["" if op == UNKNOWN else trace.names[trace.ops.name[op]]] += length
    found = [
        KernelTime(name=name, count=counts[name], seconds=sum(by_op.values()), op=max(by_op, key=lambda op: by_op[op]))
        for name, by_op in seconds.items()
    ]
    return tuple(sorted(found, key=lambda kernel: -kernel.seconds))
