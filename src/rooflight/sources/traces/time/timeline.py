"""What the devices of a trace did with its time: by kind of work, kernel, step and phase, and how it was launched."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from rooflight.records.measurement import Float64
from rooflight.records.record import Direction, phase_name
from rooflight.records.session import Flags, Int32, Int64
from rooflight.records.timeline import (
    DeviceTime,
    HostOp,
    Idle,
    KernelTime,
    Launches,
    NamedWork,
    PhaseTime,
    StepTime,
    Timeline,
)
from rooflight.sources.traces.file.trace import UNKNOWN, Nesting, Trace, WorkKind
from rooflight.sources.traces.ops.collectives import RUNS_COLLECTIVE
from rooflight.sources.traces.ownership import Ownership, Places
from rooflight.sources.traces.time.idle import CAUSES, Covered, IdleTime, idle_time, waits_for_device
from rooflight.sources.traces.time.own import OwnTime
from rooflight.sources.traces.time.steps import Steps

SHORT_NS: Final = 5_000


class Activity:
    """When the devices of a trace worked, by kind of work: all of it, or the pieces ``chosen``."""

    def __init__(self, trace: Trace, chosen: Flags | None = None) -> None:
        work = trace.work
        chosen = np.ones(len(work), dtype=np.bool_) if chosen is None else chosen
        self.moved = work.kind == WorkKind.COPY
        self.collective = (work.kind == WorkKind.KERNEL) & trace.named(work, RUNS_COLLECTIVE.search)
        self.busy = _when(trace, chosen)
        self._kernels, self._copies = _when(trace, chosen & ~self.moved), _when(trace, chosen & self.moved)
        self._compute = _when(trace, chosen & ~self.moved & ~self.collective)
        self._communication = _when(trace, chosen & self.collective)

    def times(self, begin: Int64, end: Int64) -> list[dict[str, Any]]:
        """What was done between each ``begin`` and its ``end``, in nanoseconds: fields of a DeviceTime."""
        busy, compute, kernels, copies, communication = (
            each.within(begin, end)
            for each in (self.busy, self._compute, self._kernels, self._copies, self._communication)
        )
        nanoseconds = {
            "wall_s": end - begin,
            "busy_s": busy,
            "compute_s": compute,
            "copy_s": copies,
            "communication_s": communication,
            "exposed_communication_s": kernels - compute,
            "exposed_copy_s": busy - kernels,
            "idle_s": end - begin - busy,
        }
        columns = {name: column.tolist() for name, column in nanoseconds.items()}
        return [{name: column[place] * 1e-9 for name, column in columns.items()} for place in range(len(begin))]


def timeline_of(
    owned: Ownership,
    places: Places,
    steps: Steps,
    own: OwnTime,
    *,
    shown: tuple[int, ...],
    walls: Sequence[tuple[int, int]],
    calls: Mapping[int, int],
    has_shapes: Flags,
    replayed: Flags,
) -> Timeline | None:
    """The timeline of a whole trace and its steps, None where no device did anything. The session is of the ``shown``
    steps, from begin to end in ``walls``; ``calls`` counts the ops by the number of the step; ``has_shapes[i]``: those
    of op i are known; ``replayed[k]``: work k belongs to an op in the trace of a capture.
    """
    trace = owned.trace
    if not len(trace.work):
        return None
    begin, end = (np.array([edge]) for edge in trace.window)
    activity = Activity(trace)
    idle = idle_time(owned, activity.busy)
    edges = [np.array(edge, dtype=np.int64) for edge in zip(*walls, strict=True)]
    shapeless = owned.accounted != UNKNOWN
    unowned = ~shapeless & ~replayed
    shapeless[shapeless] = ~has_shapes[owned.accounted[shapeless]]
    step_times = zip(
        activity.times(steps.begin, steps.end),
        idle.within(steps.begin, steps.end),
        _by_step(trace, unowned, steps),
        strict=True,
    )
    return Timeline(
        **activity.times(begin, end)[0],
        idle=idle.within(begin, end)[0],
        launched=_launched_by_ops(owned),
        before_trace_s=_seconds(trace, owned.before_trace),
        no_host_op_s=_seconds(trace, unowned & ~owned.before_trace),
        no_shapes_s=_seconds(trace, shapeless),
        waits=(*idle.waits(*edges), *own.waits(owned.accounted, *edges)),
        without_op=_by_name(trace, unowned),
        steps=tuple(
            StepTime(
                **times,
                idle=causes,
                name=steps.names[number],
                calls=calls.get(number, 0),
                in_session=number in shown,
                without_op_s=without_op_s,
                without_op=pieces,
            )
            for number, (times, causes, (without_op_s, pieces)) in enumerate(step_times)
        ),
        phases=_phase_times(trace, _phases_of_work(owned, places), idle, activity),
        idle_details=idle.details(),
        launches=launches_of(owned),
    )


def _seconds(trace: Trace, chosen: Flags) -> float:
    return float(trace.work.length[chosen].sum(dtype=np.float64)) * 1e-9  # int64 holds two of the longest


def _when(trace: Trace, chosen: Flags | Int64) -> Covered:
    return Covered.by(trace.work.start[chosen], trace.work.stop[chosen])


def _launched_by_ops(owned: Ownership) -> DeviceTime | None:
    work, chosen = owned.trace.work, owned.launched_by != UNKNOWN
    if not chosen.any():
        return None
    begin, end = work.start[chosen].min(), work.stop[chosen].max()
    return DeviceTime(**Activity(owned.trace, chosen).times(np.array([begin]), np.array([end]))[0])


def _by_step(trace: Trace, chosen: Flags, steps: Steps) -> list[tuple[float, int]]:
    if not len(steps):
        return []
    start, lengths = trace.work.start[chosen], trace.work.length[chosen] * 1e-9
    place = np.searchsorted(steps.begin, start, side="right") - 1
    inside = (place >= 0) & (start < steps.end[np.maximum(place, 0)])
    seconds = np.bincount(place[inside], lengths[inside], len(steps))
    return list(zip(seconds.tolist(), np.bincount(place[inside], minlength=len(steps)).tolist(), strict=True))


def _by_name(trace: Trace, chosen: Flags) -> tuple[NamedWork, ...]:
    names, places, counts = np.unique(trace.work.name[chosen], return_inverse=True, return_counts=True)
    seconds = np.bincount(places, trace.work.length[chosen], len(names)) * 1e-9
    return tuple(
        NamedWork(name=trace.names[names[place]], count=int(counts[place]), seconds=float(seconds[place]))
        for place in np.argsort(-seconds, kind="stable").tolist()
    )


def kernels_by_name(parts: Iterable[tuple[Ownership, Flags]]) -> tuple[KernelTime, ...]:
    """All kernels of the chosen work of traces, those of the same name together, the longest first, each with the op
    that most of its time belongs to.
    """
    counts: dict[str, int] = defaultdict(int)
    seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for owned, chosen in parts:
        trace, work = owned.trace, owned.trace.work
        kernels = chosen & (work.kind == WorkKind.KERNEL)
        columns = (work.name, owned.accounted, work.length * 1e-9)
        for name, op, length in zip(*(column[kernels].tolist() for column in columns), strict=True):
            kernel = trace.names[name]
            counts[kernel] += 1
            seconds[kernel]["" if op == UNKNOWN else trace.op_name(op)] += length
    found = [
        KernelTime(name=name, count=counts[name], seconds=sum(by_op.values()), op=max(by_op, key=lambda op: by_op[op]))
        for name, by_op in seconds.items()
    ]
    return tuple(sorted(found, key=lambda kernel: -kernel.seconds))


def launches_of(owned: Ownership) -> Launches | None:
    """How the host launched the work; None where no call that launched is known."""
    trace, work, calls = owned.trace, owned.trace.work, owned.trace.calls
    known = owned.call != UNKNOWN
    if not known.any():
        return None
    is_kernel = work.kind == WorkKind.KERNEL
    is_short = is_kernel & (work.length < SHORT_NS)
    launching, begun = owned.call[known], work.start[known]
    delays = np.maximum(begun - calls.start[launching], 0) * 1e-9  # clocks of host and device may be some µs apart
    depth, shares = queue(np.minimum(calls.stop[launching], begun), begun)
    ops = _host_ops(owned)
    host_s, launched = sum(op.host_s for op in ops), sum(op.launched for op in ops)
    return Launches(
        kernels=int(is_kernel.sum()),
        kernels_s=_seconds(trace, is_kernel),
        short_kernels=int(is_short.sum()),
        short_s=_seconds(trace, is_short),
        launches=int(known.sum()),
        graphs=int(trace.named(calls, lambda name: "GraphLaunch" in name).sum()),
        captures=int(trace.named(calls, lambda name: "StreamBeginCapture" in name).sum()),
        compiled=trace.is_compiled,
        delay_median_s=float(np.median(delays)),
        delay_p90_s=float(np.percentile(delays, 90)),
        queue_median=quantile(depth, shares, 0.5),
        queue_p90=quantile(depth, shares, 0.9),
        queue_max=int(depth.max()),
        queue_empty=float(shares[depth == 0].sum()),
        host_per_launch_s=host_s / launched if launched else 0.0,
        ops=ops,
    )


def queue(launched: Int64, begun: Int64) -> tuple[Int64, Float64]:
    """How much work was launched and had not begun, and the share of the time from the first launch to the last begin
    in which it was so much.
    """
    moments = np.concatenate([launched, begun])
    change = np.concatenate([np.ones(len(launched), dtype=np.int64), np.full(len(begun), -1, dtype=np.int64)])
    order = np.argsort(moments, kind="stable")
    lengths, depth = np.diff(moments[order]), np.cumsum(change[order])[:-1]
    whole = lengths.sum()
    if not whole:
        return np.zeros(1, dtype=np.int64), np.ones(1)
    depths, places = np.unique(depth[lengths > 0], return_inverse=True)
    return depths, np.asarray(np.bincount(places, lengths[lengths > 0]) / whole, dtype=np.float64)


def quantile(values: Int64, shares: Float64, share: float) -> int:
    """The smallest of ``values``, which are sorted, such that it and smaller ones have this share."""
    reached = np.cumsum(shares)
    return int(values[min(int(np.searchsorted(reached, share - 1e-12)), len(values) - 1)])


def _host_ops(owned: Ownership) -> tuple[HostOp, ...]:
    trace, ops = owned.trace, owned.trace.ops
    mine = owned.accounted != UNKNOWN
    of_op, running = owned.accounted[mine], owned.device_ops
    if not len(of_op):
        return ()
    worked_ns, waits = ops.length, waits_for_device(owned)
    waiting = _around(owned.nesting, owned.nesting.call_op[waits], running)
    np.subtract.at(worked_ns, waiting[waiting != UNKNOWN], trace.calls.length[waits][waiting != UNKNOWN])
    host_ns = np.bincount(ops.name[running], np.maximum(worked_ns[running], 0), len(trace.names))
    calls = np.bincount(ops.name[running], minlength=len(trace.names))
    launched = np.bincount(ops.name[of_op], minlength=len(trace.names))
    device_ns = np.bincount(ops.name[of_op], trace.work.length[mine], len(trace.names))
    return tuple(
        HostOp(
            name=trace.names[name],
            calls=int(calls[name]),
            host_s=float(host_ns[name]) * 1e-9,
            launched=int(launched[name]),
            device_s=float(device_ns[name]) * 1e-9,
        )
        for name in sorted(np.flatnonzero(calls).tolist(), key=lambda name: (-host_ns[name], trace.names[name]))
    )


def _around(nesting: Nesting, inner: Int32, chosen: Int32) -> Int32:
    is_chosen = np.zeros(len(nesting.parent) + 1, dtype=np.bool_)  # the last is that of UNKNOWN
    is_chosen[chosen] = True
    found = inner.copy()
    while (climbing := (found != UNKNOWN) & ~is_chosen[found]).any():
        found[climbing] = nesting.parent[found[climbing]]
    return found


def _phases_of_work(owned: Ownership, places: Places) -> list[str]:
    known: dict[int, tuple[str, Direction]] = {}
    labels: list[tuple[str, Direction]] = []
    for op, call in zip(owned.accounted.tolist(), owned.call.tolist(), strict=True):
        if op == UNKNOWN:
            labels.append((places.phase_of_call(call) if call != UNKNOWN else "", Direction.FORWARD))
            continue
        if op not in known:
            known[op] = places.phase(op)
        labels.append(known[op])
    others = any(phase for phase, _ in labels)
    return [phase_name(phase, direction, others=others) for phase, direction in labels]


def _phase_times(trace: Trace, phases: Sequence[str], idle: IdleTime, activity: Activity) -> tuple[PhaseTime, ...]:
    names = {name: number for number, name in enumerate(dict.fromkeys(phases))}
    if len(names) < 2:
        return ()
    phase = np.array([names[name] for name in phases], dtype=np.int64)
    of_work = np.split(np.argsort(phase, kind="stable"), np.cumsum(np.bincount(phase))[:-1])
    ended = idle.ended_by != UNKNOWN
    place = phase[idle.ended_by[ended]] * len(CAUSES) + idle.cause[ended]
    lengths = ((idle.stop - idle.start) * 1e-9)[ended]
    waited = np.bincount(place, lengths, len(names) * len(CAUSES)).reshape(len(names), len(CAUSES))
    annotated = _annotated(trace, names)
    found = []
    for name, number in names.items():
        mine, waits = of_work[number], waited[number]
        collective, moved = activity.collective[mine], activity.moved[mine]
        count, host_s = annotated.get(name, (0, 0.0))
        found.append(
            PhaseTime(
                name=name,
                count=count,
                host_s=host_s,
                busy_s=_when(trace, mine).length * 1e-9,
                compute_s=_when(trace, mine[~collective & ~moved]).length * 1e-9,
                copy_s=_when(trace, mine[moved]).length * 1e-9,
                communication_s=_when(trace, mine[collective]).length * 1e-9,
                idle_s=float(waits.sum()),
                idle=Idle(**{cause.field: float(wait) for cause, wait in zip(CAUSES, waits, strict=True)}),
            )
        )
    return tuple(sorted(found, key=lambda each: -(each.busy_s + each.idle_s)))


def _annotated(trace: Trace, names: Mapping[str, int]) -> dict[str, tuple[int, float]]:
    found = {}
    for number, name in enumerate(trace.names):
        if name in names:
            mine = trace.ranges.where(trace.ranges.name == number)
            found[name] = len(mine), Covered.by(mine.start, mine.stop).length * 1e-9
    return found
