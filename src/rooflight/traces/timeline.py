"""What the devices of a trace did with its time."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from rooflight.records.session import Flags, Int64
from rooflight.records.timeline import NamedWork, Timeline
from rooflight.traces.ownership import Ownership
from rooflight.traces.trace import UNKNOWN, Trace, WorkKind

_COLLECTIVE: Final = re.compile(
    r"nccl(?:Dev)?Kernel|^[nr]ccl|^msccl|cross_device_reduce|multimem_|(?:one|two)_shot_all_?reduce", re.IGNORECASE
)
"""Kernels of collectives: those of NCCL, RCCL and MSCCL, and all-reduces of vLLM, SGLang and symmetric memory."""


def timeline_of(trace: Trace, owned: Ownership, has_shapes: Flags, replayed: Flags | None = None) -> Timeline | None:
    """The timeline of a trace, None where no device did anything. ``has_shapes[i]``: those of op i are known;
    ``replayed[i]``: work i belongs to an op in the trace of a capture.
    """
    work = trace.work
    if not len(work):
        return None
    begin, end = window(trace)
    collective = np.array([bool(_COLLECTIVE.search(name)) for name in trace.names], dtype=np.bool_)[work.name]
    moved = work.kind == WorkKind.COPY
    communication = (work.kind == WorkKind.KERNEL) & collective
    compute_ns, kernels_ns = _union(trace, ~moved & ~communication), _union(trace, ~moved)
    busy_ns = _union(trace, np.ones(len(work), dtype=np.bool_))
    durations = work.stop - work.start
    shapeless = owned.accounted != UNKNOWN
    unowned = ~shapeless & ~replayed if replayed is not None else ~shapeless
    shapeless[shapeless] = ~has_shapes[owned.accounted[shapeless]]
    return Timeline(
        wall_s=(end - begin) * 1e-9,
        busy_s=busy_ns * 1e-9,
        compute_s=compute_ns * 1e-9,
        copy_s=_union(trace, moved) * 1e-9,
        communication_s=_union(trace, communication) * 1e-9,
        exposed_communication_s=(kernels_ns - compute_ns) * 1e-9,
        exposed_copy_s=(busy_ns - kernels_ns) * 1e-9,
        idle_s=(end - begin - busy_ns) * 1e-9,
        before_trace_s=float(durations[owned.before_trace].sum()) * 1e-9,
        no_host_op_s=float(durations[unowned & ~owned.before_trace].sum()) * 1e-9,
        no_shapes_s=float(durations[shapeless].sum()) * 1e-9,
        without_op=_by_name(trace, unowned),
    )


def _by_name(trace: Trace, chosen: Flags) -> tuple[NamedWork, ...]:
    names, places, counts = np.unique(trace.work.name[chosen], return_inverse=True, return_counts=True)
    seconds = np.bincount(places, (trace.work.stop - trace.work.start)[chosen], len(names)) * 1e-9
    return tuple(
        NamedWork(name=trace.names[names[place]], count=int(counts[place]), seconds=float(seconds[place]))
        for place in np.argsort(-seconds, kind="stable").tolist()
    )


def window(trace: Trace) -> tuple[int, int]:
    """When the first event of the trace began and the last one ended, in nanoseconds of its clock."""
    both = [spans for spans in (trace.ops, trace.calls, trace.work) if len(spans)]
    return min(int(spans.start.min()) for spans in both), max(int(spans.stop.max()) for spans in both)


def _union(trace: Trace, chosen: Flags) -> int:
    """Nanoseconds in which at least one of the chosen pieces of work ran."""
    return union_ns(trace.work.start[chosen], trace.work.stop[chosen])


def union_ns(start: Int64, stop: Int64) -> int:
    """The length of the union of intervals."""
    if not len(start):
        return 0
    order = np.argsort(start, kind="stable")
    begun, ended = start[order], np.maximum.accumulate(stop[order])
    gaps = np.maximum(begun[1:] - ended[:-1], 0)
    return int(ended[-1] - begun[0] - gaps.sum())
