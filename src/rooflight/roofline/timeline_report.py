"""The timeline of a measured run in reports: what the device did with the wall time, and what belongs to no op."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rooflight.costs.cost import Uncosted
from rooflight.records.document import Fields
from rooflight.records.quantity import Quantity, percent
from rooflight.records.report import Column, Table
from rooflight.records.timeline import Timeline
from rooflight.roofline import idle_report
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.launches_report import host_table

_LETTERS: Final = 72
_MUCH: Final = 0.01  # of the device's work: so much without a bound is said
_SEE: Final = "--top, or --json for all"


class NamedWorkData(Fields, frozen=True, kw_only=True):
    """Work of the device of one name: how many pieces, and their seconds in sum."""

    name: str
    count: int
    seconds: float


class UnattributedData(Fields, frozen=True, kw_only=True):
    """The device's work in the whole trace, in sum, for which there is no op or no bound: launched before the trace
    began, by no op on the host, by ops without shapes, and by other ops without a cost. ``without_op`` is the work of
    the first two by name.
    """

    before_trace_s: float
    no_host_op_s: float
    no_shapes_s: float
    uncosted_s: float
    without_op: tuple[NamedWorkData, ...]


def unattributed_data(analysis: Analysis) -> UnattributedData | None:
    """None where the device was not followed."""
    found = analysis.timeline
    if found is None:
        return None
    return UnattributedData(
        before_trace_s=found.before_trace_s,
        no_host_op_s=found.no_host_op_s,
        no_shapes_s=found.no_shapes_s,
        uncosted_s=_less(_uncosted_s(analysis, found), found.no_shapes_s),
        without_op=tuple(
            NamedWorkData(name=work.name, count=work.count, seconds=work.seconds) for work in found.without_op
        ),
    )


def timeline_tables(analysis: Analysis, top: int) -> Iterable[Table]:
    """What the device did, and which of its work has no bound."""
    found, rest = analysis.timeline, unattributed_data(analysis)
    if found is None or rest is None:
        return
    rows = (
        ("compute", found.compute_s),
        ("communication that nothing hides", found.exposed_communication_s),
        ("copies that nothing hides", found.exposed_copy_s),
        ("idle", found.idle_s),
    )
    yield Table(
        id="timeline",
        title=f"Timeline of {analysis.measured_on or 'the device'}, whole trace",
        columns=(Column("the device"), Column("time", "s"), Column("share", "%")),
        rows=tuple((name, seconds, seconds / found.wall_s if found.wall_s else None) for name, seconds in rows),
        note=_hidden(found),
    )
    yield from idle_report.idle_tables(found, top)
    host = host_table(found.launches, top) if found.launches is not None else None
    if host is not None:
        yield host
    if found.kernels:
        yield _kernels(found, top)
    without = (
        ("launched before the trace began", rest.before_trace_s),
        ("launched by no op on the host", rest.no_host_op_s),
        ("ops without shapes", rest.no_shapes_s),
        ("other ops without a cost", rest.uncosted_s),
    )
    if any(seconds for _, seconds in without):
        work_s = _work_s(analysis)
        yield Table(
            id="unattributed",
            title="Work of the device without a bound",
            columns=(Column("why"), Column("time", "s"), Column("share", "%")),
            rows=tuple((name, seconds, seconds / work_s) for name, seconds in without if seconds),
            note="Shares are of the device's work in sum.",
        )
    if found.without_op:
        whole_s = sum(work.seconds for work in found.without_op)
        yield Table(
            id="work_without_op",
            title="Work of the device that belongs to no op",
            columns=(Column("kernel or copy"), Column("count"), Column("time", "s"), Column("share", "%")),
            rows=tuple(
                (_short(work.name), work.count, work.seconds, work.seconds / whole_s if whole_s else None)
                for work in found.without_op
            ),
            top=top,
            see=_SEE,
            note="Shares are of this work.",
        )


def _kernels(found: Timeline, top: int) -> Table:
    whole_s = sum(kernel.seconds for kernel in found.kernels)
    return Table(
        id="by_kernel",
        title="By kernel, whole trace",
        columns=(
            Column("kernel"),
            Column("op"),
            Column("count"),
            Column("time", "s"),
            Column("share", "%"),
            Column("mean", "s"),
        ),
        rows=tuple(
            (
                _short(kernel.name),
                kernel.op.removeprefix("aten::") or None,
                kernel.count,
                kernel.seconds,
                kernel.seconds / whole_s if whole_s else None,
                kernel.seconds / kernel.count,
            )
            for kernel in found.kernels
        ),
        top=top,
        see=_SEE,
        note="op: the op that most of the kernel's time belongs to. Shares are of all kernels' time in sum.",
        optional=("mean",),
    )


def idle_sentence(analysis: Analysis) -> str:
    """For the conclusion: how much of the time the device was idle, mostly why, and what helps; empty where little."""
    return idle_report.idle_sentence(analysis.timeline, _the_device(analysis)) if analysis.timeline is not None else ""


def _the_device(analysis: Analysis) -> str:
    return analysis.measured_on or "The device"


def _short(name: str) -> str:
    """A kernel's name as far as a table has room: templates make it hundreds of letters long."""
    return name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…"


def unbounded_sentence(analysis: Analysis) -> str:
    """How much of the device's work in a step a comparison of its time with the bound leaves out; empty where that is
    little.
    """
    if analysis.timeline is None:
        return ""
    without_s = analysis.timeline.step_without_op_s
    uncosted_s = sum(op.measured_s or 0.0 for op in analysis.operations if isinstance(op.cost, Uncosted))
    work_s = without_s + (analysis.totals.ops_measured_s or 0.0)
    share = (without_s + uncosted_s) / work_s if work_s else 0.0
    if share < _MUCH:
        return ""
    work = f"{percent(share)} of the device's work in the step"
    return f" {work} has no bound, so that the step is nearer to the speed of light."


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


def _less(seconds: float, part_s: float) -> float:
    """Seconds without a part of them; what two sums differ by for having been added in another order is none."""
    rest_s = seconds - part_s
    return rest_s if rest_s > 1e-9 * seconds else 0.0


def _uncosted_s(analysis: Analysis, timeline: Timeline) -> float:
    """Seconds of all ops of the run without a cost, also of those in steps without records."""
    return sum(
        seconds
        for seconds, cost in zip(timeline.signature_s, analysis.costs, strict=True)
        if isinstance(cost, Uncosted)
    )


def _work_s(analysis: Analysis) -> float:
    """The device's work in sum, of the whole run."""
    timeline = analysis.timeline
    return timeline.without_op_s + sum(timeline.signature_s) if timeline is not None else 0.0
