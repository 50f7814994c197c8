"""What the device did for each phase of a program: the work that was launched in it, and the idle time before that."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rooflight.records.record import Direction, phase_name
from rooflight.records.session import Flags, Int64
from rooflight.records.timeline import Idle, PhaseTime
from rooflight.traces.covered import Covered
from rooflight.traces.idle import CAUSES, IdleTime
from rooflight.traces.ownership import Ownership
from rooflight.traces.places import Places
from rooflight.traces.trace import UNKNOWN, Trace


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
