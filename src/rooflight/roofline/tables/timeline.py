"""The timeline of a measured run in reports: what the device did with the wall time, why it was idle, how the host
launched its work, and which of its work belongs to no op. What helps, a diagnosis says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.records.document import Fields
from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.records.report import Cell, Table, share, table
from rooflight.records.timeline import Idle, IdleCause, Launches, NamedWork, Timeline
from rooflight.roofline.groups import plain_name

_FEW_STEPS: Final = 20
_CAUSES: Final[Mapping[IdleCause, str]] = {
    IdleCause.HOST: "host late to launch",
    IdleCause.SYNC: "host waited for the device",
    IdleCause.PAGEABLE_COPY: "copy from pageable memory",
    IdleCause.DATA_LOADER: "data loader",
    IdleCause.RANK: "waiting for a rank",
    IdleCause.DRIVER: "driver: allocation, loading kernels",
    IdleCause.PROFILER: "the profiler",
    IdleCause.LAUNCH: "launched late, not begun",
    IdleCause.QUEUED: "queued before, not begun",
    IdleCause.UNKNOWN: "unknown: no launch in the trace",
}


class UnattributedWork(Fields, frozen=True, kw_only=True):
    """The device's work in the whole trace, in sum, for which there is no op or no bound: launched before the trace
    began, by no op on the host, by ops without shapes, and by other ops without a cost. ``without_op`` is the work of
    the first two by name.
    """

    before_trace_s: float
    no_host_op_s: float
    no_shapes_s: float
    uncosted_s: float
    without_op: tuple[NamedWork, ...]


def unattributed_work(found: Timeline, costs: Sequence[OpCost | Uncosted]) -> UnattributedWork:
    """Which of a run's work has no bound; ``costs`` are those of the session's signatures."""
    uncosted_s = sum(s for s, cost in zip(found.signature_s, costs, strict=True) if isinstance(cost, Uncosted))
    rest_s = uncosted_s - found.no_shapes_s
    # what two sums differ by for having been added in another order is nothing
    return UnattributedWork.view(found, uncosted_s=rest_s if rest_s > 1e-9 * uncosted_s else 0.0)


def timeline_tables(found: Timeline, device: str, rest: UnattributedWork, top: int) -> Iterable[Table]:
    """What the device did, why it was idle, and which of its work has no bound."""
    yield table(
        "timeline",
        f"Timeline of {device or 'the device'}, whole trace",
        (
            ("compute", found.compute_s),
            ("communication that nothing hides", found.exposed_communication_s),
            ("copies that nothing hides", found.exposed_copy_s),
            ("idle", found.idle_s),
        ),
        ("the device", "", lambda row: row[0]),
        ("time", "s", lambda row: row[1]),
        ("share", "%", lambda row: share(row[1], found.wall_s)),
        note=_hidden(found),
    )
    if found.idle_details:
        yield _idle_table(found)
    if len(found.steps) > 1:
        yield _steps_table(found, top)
    if found.phases:
        yield _phases_table(found, top)
    if found.launches is not None and found.launches.ops:
        yield _host_table(found.launches, top)
    if found.kernels:
        yield _kernels_table(found, top)
    yield from _unattributed_tables(found, rest, top)


def _idle_table(found: Timeline) -> Table:
    return table(
        "idle",
        "Why the device was idle",
        found.idle_details,
        ("cause", "", lambda detail: _CAUSES[detail.cause]),
        ("time", "s", lambda detail: detail.seconds),
        ("share", "%", lambda detail: share(detail.seconds, found.wall_s)),
        ("times", "", lambda detail: detail.count),
        ("median", "s", lambda detail: detail.median_s),
        ("longest", "s", lambda detail: detail.longest_s),
        ("mostly in", "", lambda detail: _short(detail.mostly_in, 48) or None),
        optional=("median", "longest", "times", "mostly in"),
        note="Shares are of the wall time.",
    )


def _steps_table(found: Timeline, top: int) -> Table:
    return table(
        "steps",
        "Timeline by step",
        found.steps,
        ("step", "", lambda step: step.name),
        ("in this report", "", lambda step: "yes" if step.in_session else "no"),
        ("ops", "", lambda step: step.calls),
        ("wall", "s", lambda step: step.wall_s),
        ("compute", "s", lambda step: step.compute_s),
        ("exposed communication", "s", lambda step: step.exposed_communication_s),
        ("idle", "s", lambda step: step.idle_s),
        ("idle share", "%", lambda step: share(step.idle_s, step.wall_s)),
        ("idle mostly because of", "", lambda step: _main_cause(step.idle)),
        top=max(top, _FEW_STEPS),
        optional=("ops", "exposed communication", "compute", "idle"),
    )


def _phases_table(found: Timeline, top: int) -> Table:
    return table(
        "phase_timeline",
        "Timeline by phase",
        found.phases,
        ("phase", "", lambda phase: _short(phase.name, 48)),
        ("times", "", lambda phase: phase.count or None),
        ("host", "s", lambda phase: phase.host_s if phase.count else None),
        ("busy", "s", lambda phase: phase.busy_s),
        ("communication", "s", lambda phase: phase.communication_s),
        ("idle before its work", "s", lambda phase: phase.idle_s),
        ("idle mostly because of", "", lambda phase: _main_cause(phase.idle)),
        top=top,
        optional=("times", "host", "communication"),
        note="Of the whole trace. Busy: the device ran work that was launched in the phase, whenever that was.",
    )


def _host_table(found: Launches, top: int) -> Table:
    return table(
        "host_time",
        "Host time of ops that launch",
        found.ops,
        ("op", "", lambda op: plain_name(op.name)),
        ("calls", "", lambda op: op.calls),
        ("launched", "", lambda op: op.launched),
        ("host", "s", lambda op: op.host_s),
        ("host per call", "s", lambda op: op.host_s / op.calls),
        ("device per call", "s", lambda op: op.device_s / op.calls),
        top=top,
        optional=("launched", "calls"),
        note="Of the whole trace, without the host's waits for the device. Where the host needs longer per call than "
        "the device, the device waits for it.",
    )


def _kernels_table(found: Timeline, top: int) -> Table:
    whole_s = sum(kernel.seconds for kernel in found.kernels)
    return table(
        "by_kernel",
        "By kernel, whole trace",
        found.kernels,
        ("kernel", "", lambda kernel: _short(kernel.name)),
        ("op", "", lambda kernel: kernel.op.removeprefix("aten::") or None),
        ("count", "", lambda kernel: kernel.count),
        ("time", "s", lambda kernel: kernel.seconds),
        ("share", "%", lambda kernel: share(kernel.seconds, whole_s)),
        ("mean", "s", lambda kernel: kernel.seconds / kernel.count),
        top=top,
        note="op: the op that most of the kernel's time belongs to. Shares are of all kernels' time in sum.",
        optional=("mean",),
    )


def _unattributed_tables(found: Timeline, rest: UnattributedWork, top: int) -> Iterable[Table]:
    work_s = found.without_op_s + sum(found.signature_s)
    without = (
        ("launched before the trace began", rest.before_trace_s),
        ("launched by no op on the host", rest.no_host_op_s),
        ("ops without shapes", rest.no_shapes_s),
        ("other ops without a cost", rest.uncosted_s),
    )
    if any(seconds for _, seconds in without):
        yield table(
            "unattributed",
            "Work of the device without a bound",
            (row for row in without if row[1]),
            ("why", "", lambda row: row[0]),
            ("time", "s", lambda row: row[1]),
            ("share", "%", lambda row: row[1] / work_s),
            note="Shares are of the device's work in sum.",
        )
    if found.without_op:
        whole_s = sum(work.seconds for work in found.without_op)
        yield table(
            "work_without_op",
            "Work of the device that belongs to no op",
            found.without_op,
            ("kernel or copy", "", lambda work: _short(work.name)),
            ("count", "", lambda work: work.count),
            ("time", "s", lambda work: work.seconds),
            ("share", "%", lambda work: share(work.seconds, whole_s)),
            top=top,
            note="Shares are of this work.",
        )


def launch_facts(found: Launches) -> Iterable[tuple[str, Cell]]:
    """What the head of the report shows of kernels and their launches."""
    if found.kernels:
        short = percent(found.short_s / found.kernels_s) if found.kernels_s else "0%"
        yield (
            "kernels",
            f"{found.kernels:,} in the trace, {found.short_kernels:,} shorter than 5 µs ({short} of their time)",
        )
    host = f"; host {Quantity(found.host_per_launch_s, 's')} per launch" if found.host_per_launch_s else ""
    graphs = f"; {count_of(found.graphs, 'replay')} of graphs" if found.graphs else ""
    graphs += f"; {count_of(found.captures, 'capture')} of graphs" if found.captures else ""
    yield (
        "launches",
        f"work begins {Quantity(found.delay_median_s, 's')} after its launch (median), {found.queue_median:,} in the "
        f"queue (median), none for {percent(found.queue_empty)} of the time{host}{graphs}",
    )


def _hidden(found: Timeline) -> str:
    parts = [
        f"{Quantity(whole, 's')} of {name}, {percent(1 - exposed / whole)} of it hidden"
        for name, whole, exposed in (
            ("communication", found.communication_s, found.exposed_communication_s),
            ("copies", found.copy_s, found.exposed_copy_s),
        )
        if whole
    ]
    return f"In all {'; '.join(parts)}." if parts else ""


def _longest(idle: Idle) -> tuple[IdleCause, float]:
    return max(idle.parts, key=lambda part: part[1])


def _main_cause(idle: Idle | None) -> str | None:
    if idle is None:
        return None
    cause, seconds = _longest(idle)
    return f"{_CAUSES[cause]}, {Quantity(seconds, 's')}" if seconds else None


def _short(name: str, letters: int = 72) -> str:
    """A name as far as a table has room: templates make a kernel's hundreds of letters long."""
    return name if len(name) <= letters else f"{name[: letters - 1]}…"
