"""What the devices of a trace did with its time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rooflight.records.session import Flags, Int64
from rooflight.records.timeline import DeviceTime, NamedWork, StepTime, Timeline
from rooflight.traces.collectives import RUNS_COLLECTIVE
from rooflight.traces.covered import Covered
from rooflight.traces.idle import IdleTime, idle_time
from rooflight.traces.launches import launches_of
from rooflight.traces.nesting import Nesting
from rooflight.traces.ownership import Ownership
from rooflight.traces.phase_times import phase_times, phases_of_work
from rooflight.traces.places import Places
from rooflight.traces.steps import Steps
from rooflight.traces.trace import UNKNOWN, Trace, WorkKind, window


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
