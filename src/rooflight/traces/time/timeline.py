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
from rooflight.traces.file.nesting import Nesting
from rooflight.traces.file.trace import UNKNOWN, Spans, Trace, WorkKind, window
from rooflight.traces.ops.collectives import RUNS_COLLECTIVE
from rooflight.traces.ownership import Ownership, Places
from rooflight.traces.time.idle import CAUSES, Covered, IdleTime, idle_time, waits_for_device
from rooflight.traces.time.steps import Steps


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


SHORT_NS: Final = 5_000
_COMPILED: Final = ("CompiledFxGraph", "Torch-Compiled Region")
"""In the names of annotations around compiled code."""


def launches_of(trace: Trace, nesting: Nesting, owned: Ownership) -> Launches | None:
    """None where no call that launched is known."""
    work, calls = trace.work, trace.calls
    known = owned.call != UNKNOWN
    if not known.any():
        return None
    durations = work.stop - work.start
    is_kernel = work.kind == WorkKind.KERNEL
    is_short = is_kernel & (durations < SHORT_NS)
    called, begun = calls.start[owned.call[known]], work.start[known]
    delays = np.maximum(begun - called, 0) * 1e-9  # clocks of host and device may be some µs apart
    depth, shares = queue(np.minimum(calls.stop[owned.call[known]], begun), begun)
    ops = _host_ops(trace, nesting, owned)
    host_s, launched = sum(op.host_s for op in ops), sum(op.launched for op in ops)
    return Launches(
        kernels=int(is_kernel.sum()),
        kernels_s=float(durations[is_kernel].sum()) * 1e-9,
        short_kernels=int(is_short.sum()),
        short_s=float(durations[is_short].sum()) * 1e-9,
        launches=int(known.sum()),
        graphs=_named(trace, calls, "GraphLaunch"),
        captures=_named(trace, calls, "StreamBeginCapture"),
        compiled=any(_named(trace, trace.ranges, mark) for mark in _COMPILED),
        delay_median_s=float(np.median(delays)),
        delay_p90_s=float(np.percentile(delays, 90)),
        queue_median=quantile(depth, shares, 0.5),
        queue_p90=quantile(depth, shares, 0.9),
        queue_max=int(depth.max()),
        queue_empty=float(shares[depth == 0].sum()),
        host_per_launch_s=host_s / launched if launched else 0.0,
        ops=ops,
    )


def _named(trace: Trace, spans: Spans, part: str) -> int:
    """How many spans have names with this part."""
    return int(np.isin(spans.name, [number for number, name in enumerate(trace.names) if part in name]).sum())


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


def _host_ops(trace: Trace, nesting: Nesting, owned: Ownership) -> tuple[HostOp, ...]:
    """By name, the ops at which work is accounted, those that took the host longest first."""
    mine = owned.accounted != UNKNOWN
    of_op = owned.accounted[mine]
    if not len(of_op):
        return ()
    ops, work = trace.ops, trace.work
    running = np.unique(of_op)
    worked_ns = ops.stop - ops.start
    waits = waits_for_device(trace, owned)
    waiting = _around(nesting, nesting.call_op[waits], running.astype(np.int32))
    waited_ns = (trace.calls.stop - trace.calls.start)[waits]
    np.subtract.at(worked_ns, waiting[waiting != UNKNOWN], waited_ns[waiting != UNKNOWN])
    host_ns = np.bincount(ops.name[running], np.maximum(worked_ns[running], 0), len(trace.names))
    calls = np.bincount(ops.name[running], minlength=len(trace.names))
    launched = np.bincount(ops.name[of_op], minlength=len(trace.names))
    device_ns = np.bincount(ops.name[of_op], (work.stop - work.start)[mine], len(trace.names))
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
    """The chosen op around each of the inner ones, itself included, ``UNKNOWN`` where there is none."""
    is_chosen = np.zeros(len(nesting.parent) + 1, dtype=np.bool_)  # the last is that of UNKNOWN
    is_chosen[chosen] = True
    found = inner.copy()
    while (climbing := (found != UNKNOWN) & ~is_chosen[found]).any():
        found[climbing] = nesting.parent[found[climbing]]
    return found


def phases_of_work(owned: Ownership, places: Places) -> list[str]:
    """The phase in which each piece of work was launched: that of its op, else the annotation around its call."""
    known: dict[int, tuple[str, Direction]] = {}
    labels: list[tuple[str, Direction]] = []
    for op, call in zip(owned.accounted.tolist(), owned.call.tolist(), strict=True):
        if op != UNKNOWN:
            if op not in known:
                known[op] = places.phase(op)
            labels.append(known[op])
        else:
            labels.append((places.phase_of_call(call) if call != UNKNOWN else "", Direction.FORWARD))
    others = any(phase for phase, _ in labels)
    return [phase_name(phase, direction, others=others) for phase, direction in labels]


def phase_times(
    trace: Trace, phases: Sequence[str], idle: IdleTime, collective: Flags, moved: Flags
) -> tuple[PhaseTime, ...]:
    """The time of each phase, the busiest first; none where there is but one. ``collective[k]``: work k is a kernel of
    a collective; ``moved[k]``: it is a copy.
    """
    names = {name: number for number, name in enumerate(dict.fromkeys(phases))}
    if len(names) < 2:
        return ()
    phase = np.array([names[name] for name in phases], dtype=np.int64)
    of_work = _split(phase)
    lengths = (idle.stop - idle.start) * 1e-9
    ended = idle.ended_by != UNKNOWN
    place = phase[idle.ended_by[ended]] * len(CAUSES) + idle.cause[ended]
    waited = np.bincount(place, lengths[ended], len(names) * len(CAUSES)).reshape(len(names), len(CAUSES))
    annotated = _annotated(trace, names)
    found = []
    for name, number in names.items():
        mine = of_work[number]
        count, host_s = annotated.get(name, (0, 0.0))
        found.append(
            PhaseTime(
                name=name,
                count=count,
                host_s=host_s,
                busy_s=_union_s(trace, mine),
                compute_s=_union_s(trace, mine[~collective[mine] & ~moved[mine]]),
                copy_s=_union_s(trace, mine[moved[mine]]),
                communication_s=_union_s(trace, mine[collective[mine]]),
                idle_s=float(waited[number].sum()),
                idle=Idle(**{cause.field: float(row) for cause, row in zip(CAUSES, waited[number], strict=True)}),
            )
        )
    return tuple(sorted(found, key=lambda each: -(each.busy_s + each.idle_s)))


def _split(phase: Int64) -> list[Int64]:
    """The places of each number, in order of the numbers."""
    order = np.argsort(phase, kind="stable")
    return np.split(order, np.cumsum(np.bincount(phase))[:-1])


def _annotated(trace: Trace, names: dict[str, int]) -> dict[str, tuple[int, float]]:
    """How often each annotation occurs, and the host's time in it, each moment once."""
    found = {}
    for number, name in enumerate(trace.names):
        if name in names:
            mine = trace.ranges.name == number
            seconds = Covered.by(trace.ranges.start[mine], trace.ranges.stop[mine]).length * 1e-9
            found[name] = int(mine.sum()), seconds
    return found


def _union_s(trace: Trace, chosen: Int64) -> float:
    return Covered.by(trace.work.start[chosen], trace.work.stop[chosen]).length * 1e-9


class Activity:
    """When the devices of a trace worked, by kind of work: all of it, or the pieces ``chosen``."""

    def __init__(self, trace: Trace, chosen: Flags | None = None) -> None:
        work = trace.work
        chosen = np.ones(len(work), dtype=np.bool_) if chosen is None else chosen
        collective = np.array([bool(RUNS_COLLECTIVE.search(name)) for name in trace.names], dtype=np.bool_)[work.name]
        moved = work.kind == WorkKind.COPY
        communication = (work.kind == WorkKind.KERNEL) & collective
        self.collective, self.moved = communication, moved
        self.busy = _of(trace, chosen)
        self._compute = _of(trace, chosen & ~moved & ~communication)
        self._kernels, self._copies = _of(trace, chosen & ~moved), _of(trace, chosen & moved)
        self._communication = _of(trace, chosen & communication)

    def times(self, begin: Int64, end: Int64, idle: IdleTime | None = None) -> list[DeviceTime]:
        """What was done between each ``begin`` and its ``end``, in nanoseconds."""
        causes = idle.within(begin, end) if idle is not None else [None] * len(begin)
        busy, compute, kernels, copies, communication = (
            each.within(begin, end).tolist()
            for each in (self.busy, self._compute, self._kernels, self._copies, self._communication)
        )
        return [
            DeviceTime(
                wall_s=wall * 1e-9,
                busy_s=busy[place] * 1e-9,
                compute_s=compute[place] * 1e-9,
                copy_s=copies[place] * 1e-9,
                communication_s=communication[place] * 1e-9,
                exposed_communication_s=(kernels[place] - compute[place]) * 1e-9,
                exposed_copy_s=(busy[place] - kernels[place]) * 1e-9,
                idle_s=(wall - busy[place]) * 1e-9,
                idle=causes[place],
            )
            for place, wall in enumerate((end - begin).tolist())
        ]


def timeline_of(
    trace: Trace,
    nesting: Nesting,
    owned: Ownership,
    places: Places,
    steps: Steps,
    *,
    shown: tuple[int, ...],
    calls: Mapping[int, int],
    has_shapes: Flags,
    replayed: Flags,
) -> Timeline | None:
    """The timeline of a whole trace and its steps, None where no device did anything. The session is of the ``shown``
    steps; ``calls`` counts the ops by the number of the step; ``has_shapes[i]``: those of op i are known;
    ``replayed[k]``: work k belongs to an op in the trace of a capture.
    """
    if not len(trace.work):
        return None
    begin, end = window(trace)
    activity = Activity(trace)
    idle = idle_time(trace, nesting, owned, activity.busy)
    (whole,) = activity.times(np.array([begin]), np.array([end]), idle)
    durations = trace.work.stop - trace.work.start
    shapeless = owned.accounted != UNKNOWN
    unowned = ~shapeless & ~replayed
    shapeless[shapeless] = ~has_shapes[owned.accounted[shapeless]]
    phases = phases_of_work(owned, places)
    return Timeline(
        **fields_of(whole),
        launched=_launched_by_ops(trace, owned),
        before_trace_s=float(durations[owned.before_trace].sum()) * 1e-9,
        no_host_op_s=float(durations[unowned & ~owned.before_trace].sum()) * 1e-9,
        no_shapes_s=float(durations[shapeless].sum()) * 1e-9,
        without_op=_by_name(trace, unowned),
        steps=tuple(
            StepTime(
                **fields_of(time),
                name=steps.names[number],
                calls=calls.get(number, 0),
                in_session=number in shown,
                without_op_s=float(without_op_s),
            )
            for number, (time, without_op_s) in enumerate(
                zip(activity.times(steps.begin, steps.end, idle), _by_step(trace, unowned, steps), strict=True)
            )
        ),
        phases=phase_times(trace, phases, idle, activity.collective, activity.moved),
        idle_details=idle.details(),
        launches=launches_of(trace, nesting, owned),
    )


def _launched_by_ops(trace: Trace, owned: Ownership) -> DeviceTime | None:
    """The time of the work alone that an op launched within the trace, from its first piece to the end of its last."""
    chosen = owned.launched_by != UNKNOWN
    if not chosen.any():
        return None
    begin, end = trace.work.start[chosen].min(), trace.work.stop[chosen].max()
    return Activity(trace, chosen).times(np.array([begin]), np.array([end]))[0]


def _by_step(trace: Trace, chosen: Flags, steps: Steps) -> list[float]:
    """Seconds of the chosen work, in sum, that began in each step."""
    if not len(steps):
        return []
    start, lengths = trace.work.start[chosen], (trace.work.stop - trace.work.start)[chosen] * 1e-9
    place = np.searchsorted(steps.begin, start, side="right") - 1
    inside = (place >= 0) & (start < steps.end[np.maximum(place, 0)])
    found: list[float] = np.bincount(place[inside], lengths[inside], len(steps)).tolist()
    return found


def fields_of(time: DeviceTime) -> dict[str, Any]:
    """The fields of a stretch of time, for a noun that has more."""
    return {name: getattr(time, name) for name in DeviceTime.__dataclass_fields__}


def _by_name(trace: Trace, chosen: Flags) -> tuple[NamedWork, ...]:
    names, places, counts = np.unique(trace.work.name[chosen], return_inverse=True, return_counts=True)
    seconds = np.bincount(places, (trace.work.stop - trace.work.start)[chosen], len(names)) * 1e-9
    return tuple(
        NamedWork(name=trace.names[names[place]], count=int(counts[place]), seconds=float(seconds[place]))
        for place in np.argsort(-seconds, kind="stable").tolist()
    )


def _of(trace: Trace, chosen: Flags) -> Covered:
    return Covered.by(trace.work.start[chosen], trace.work.stop[chosen])
