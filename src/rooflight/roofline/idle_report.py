"""Why the device was idle, in reports: by cause, by step and by phase, and what would help."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from rooflight.records.quantity import Quantity, percent
from rooflight.records.report import Column, Table
from rooflight.records.timeline import DeviceTime, Idle, IdleCause, Timeline

_MUCH: Final = 0.1  # of the wall time: so much idle time is in the conclusion
_LETTERS: Final = 48
_LONG_S: Final = 1e-3


class _Cause(NamedTuple):
    """A cause of idle time in words, as the end of "because", and what would help."""

    name: str
    because: str
    remedy: str


_CAUSES: Final[Mapping[IdleCause, _Cause]] = {
    IdleCause.HOST: _Cause(
        "host late to launch", "the host was late to launch", "torch.compile, CUDA graphs, fewer and larger ops"
    ),
    IdleCause.SYNC: _Cause(
        "host waited for the device", "the host had waited for the device", "fewer syncs, .item() and .cpu()"
    ),
    IdleCause.PAGEABLE_COPY: _Cause(
        "copy from pageable memory",
        "the host copied from pageable memory",
        "pinned memory (pin_memory=True), non_blocking=True",
    ),
    IdleCause.DATA_LOADER: _Cause(
        "data loader", "the host waited for the data loader", "more workers (num_workers), prefetching"
    ),
    IdleCause.RANK: _Cause(
        "waiting for a rank", "the host waited for another rank", "balanced ranks, fewer barriers and host collectives"
    ),
    IdleCause.DRIVER: _Cause(
        "driver: allocation, loading kernels",
        "the host was in the driver, which allocated memory or loaded kernels",
        "warm-up steps before the profile, memory that is kept",
    ),
    IdleCause.PROFILER: _Cause("the profiler", "the profiler worked", "warm-up steps in the profiler's schedule"),
    IdleCause.LAUNCH: _Cause(
        "work queued, not begun", "queued work had not begun", "CUDA graphs, fewer and larger kernels"
    ),
    IdleCause.UNKNOWN: _Cause(
        "unknown: no launch in the trace", "launches before the trace are unknown", "a trace that begins earlier"
    ),
}
_WITH_GRAPHS: Final = {
    IdleCause.HOST: "more of the step in the graph, less work on the host between replays",
    IdleCause.LAUNCH: "fewer and larger kernels in the graph",
}
"""What helps a program that replays or captures graphs."""
_COMPILED: Final = {IdleCause.HOST: 'CUDA graphs (mode="reduce-overhead"), fewer graph breaks, a bigger batch'}
"""What helps a program that torch.compile has compiled."""


def idle_tables(timeline: Timeline, top: int) -> Iterable[Table]:
    """Idle time by cause, and the timelines of steps and of phases where there are several."""
    if timeline.idle_details:
        yield Table(
            id="idle",
            title="Why the device was idle",
            columns=(
                Column("cause"),
                Column("time", "s"),
                Column("share", "%"),
                Column("times"),
                Column("median", "s"),
                Column("longest", "s"),
                Column("mostly in"),
                Column("remedy"),
            ),
            rows=tuple(
                (
                    _CAUSES[detail.cause].name,
                    detail.seconds,
                    detail.seconds / timeline.wall_s if timeline.wall_s else None,
                    detail.count,
                    detail.median_s,
                    detail.longest_s,
                    _short(detail.where) or None,
                    idle_remedy(detail.cause, timeline),
                )
                for detail in timeline.idle_details
            ),
            optional=("median", "longest", "mostly in", "times", "remedy"),
            note="Shares are of the wall time.",
        )
    if len(timeline.steps) > 1:
        yield _steps_table(timeline, top)
    if timeline.phases:
        yield _phases_table(timeline, top)


def _steps_table(timeline: Timeline, top: int) -> Table:
    return Table(
        id="steps",
        title="Timeline by step",
        columns=(
            Column("step"),
            Column("in this report"),
            Column("ops"),
            Column("wall", "s"),
            Column("compute", "s"),
            Column("exposed communication", "s"),
            Column("idle", "s"),
            Column("idle share", "%"),
            Column("idle mostly because of"),
        ),
        rows=tuple(
            (
                step.name,
                "yes" if step.in_session else "no",
                step.calls,
                step.wall_s,
                step.compute_s,
                step.exposed_communication_s,
                step.idle_s,
                step.idle_s / step.wall_s if step.wall_s else None,
                _main_cause(step.idle),
            )
            for step in timeline.steps
        ),
        top=max(top, 20),
        optional=("ops", "exposed communication", "compute", "idle"),
    )


def _phases_table(timeline: Timeline, top: int) -> Table:
    return Table(
        id="phase_timeline",
        title="Timeline by phase",
        columns=(
            Column("phase"),
            Column("times"),
            Column("host", "s"),
            Column("busy", "s"),
            Column("communication", "s"),
            Column("idle before its work", "s"),
            Column("idle mostly because of"),
        ),
        rows=tuple(
            (
                _short(phase.name),
                phase.count or None,
                phase.host_s if phase.count else None,
                phase.busy_s,
                phase.communication_s,
                phase.idle_s,
                _main_cause(phase.idle),
            )
            for phase in timeline.phases
        ),
        top=top,
        optional=("times", "host", "communication"),
        note="Of the whole trace. Busy: the device ran work that was launched in the phase, whenever that was.",
    )


def idle_sentence(timeline: Timeline, device: str) -> str:
    """For the conclusion: how much of the time the device was idle, mostly why, and what helps; empty where little."""
    if not timeline.wall_s or timeline.idle is None or timeline.idle_s < _MUCH * timeline.wall_s:
        return ""
    cause, seconds = max(timeline.idle.parts, key=lambda part: part[1])
    if not seconds:
        return ""
    share = percent(seconds / timeline.wall_s)
    return (
        f" {device} was idle for {percent(timeline.idle_s / timeline.wall_s)} of the trace; for {share} "
        f"({Quantity(seconds, 's')}) because {_CAUSES[cause].because}. What helps: {idle_remedy(cause, timeline)}."
    )


def idle_remedy(cause: IdleCause, timeline: Timeline) -> str:
    """What would shrink idle time of this cause."""
    if cause is IdleCause.LAUNCH and _waits_long(timeline):
        return "look for what it waits for: an event, another process, work before the trace"
    launches = timeline.launches
    if launches is not None and (launches.graphs or launches.captures):
        return _WITH_GRAPHS.get(cause, _CAUSES[cause].remedy)
    if launches is not None and launches.compiled:
        return _COMPILED.get(cause, _CAUSES[cause].remedy)
    return _CAUSES[cause].remedy


def _waits_long(timeline: Timeline) -> bool:
    """Whether queued work waited so long that this was no latency of launches."""
    return any(
        detail.cause is IdleCause.LAUNCH and detail.longest_s > max(_LONG_S, detail.seconds / 2)
        for detail in timeline.idle_details
    )


def step_remedy(timeline: Timeline) -> str:
    """What would shrink the idle time of a step of the session, by its main cause; empty where causes are not known."""
    stretches: list[DeviceTime] = [step for step in timeline.steps if step.in_session] or [timeline]
    seconds = {
        cause: sum(getattr(each.idle, cause.field) for each in stretches if each.idle is not None)
        for cause in IdleCause
    }
    most = max(seconds, key=lambda cause: seconds[cause])
    return idle_remedy(most, timeline) if seconds[most] else ""


def _main_cause(idle: Idle | None) -> str | None:
    if idle is None:
        return None
    cause, seconds = max(idle.parts, key=lambda part: part[1])
    return f"{_CAUSES[cause].name}, {Quantity(seconds, 's')}" if seconds else None


def _short(name: str) -> str:
    """A name as far as a table has room."""
    return name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…"
