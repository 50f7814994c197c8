"""An Analysis as a Report: what `rooflight analyze` shows, in every format."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rooflight.costs.cost import Uncosted
from rooflight.records.quantity import Quantity, percent
from rooflight.records.report import Report
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.bound import Limiter
from rooflight.roofline.document import analysis_data
from rooflight.roofline.facts import analysis_facts, with_interval
from rooflight.roofline.groups import seconds_by
from rooflight.roofline.host import IN_THE_OPS
from rooflight.roofline.notes import analysis_notes
from rooflight.roofline.op_names import plain_name
from rooflight.roofline.tables import AS_A_GRAPH, analysis_series, analysis_tables
from rooflight.roofline.timeline import idle_sentence

_MUCH: Final = 0.01  # of the device's work: so much without a bound is said
_WHERE: Final = {
    Limiter.COMPUTE: "arithmetic",
    Limiter.MEMORY: "memory bandwidth",
    Limiter.CACHE: "moving data that fit a cache, bounded as if from main memory",
    Limiter.NETWORK: "the network",
}


def report_of(analysis: Analysis, *, top: int = 10, notes: Iterable[str] = ()) -> Report:
    """The report of an analysis; ``top`` limits the rows of its long tables. Raises ValueError for ``top`` < 1."""
    if top < 1:
        raise ValueError(f"--top {top}: at least 1 row")
    verdict = conclusion(analysis)
    return Report(
        title=f"Speed of light: {analysis.target or 'recorded session'} on {analysis.device.name}",
        data=analysis_data(analysis, verdict),
        facts=tuple(analysis_facts(analysis)),
        tables=tuple(analysis_tables(analysis, top)),
        series=tuple(analysis_series(analysis)),
        notes=(*notes, *analysis.session.notes, *analysis_notes(analysis)),
        conclusion=verdict,
    )


def conclusion(analysis: Analysis) -> str:
    """How far from the speed of light, and what limits it, in plain words."""
    totals, measurement = analysis.totals, analysis.measurement
    if not totals.op_bound_s:
        return _without_bound(analysis)
    if analysis.beats_light:
        return (
            f"Contradiction: the step took {Quantity(totals.measured_s or 0.0, 's')}, and this device needs at least "
            f"{Quantity(analysis.program.warm.program_bound_s, 's')} for its work, however it is programmed."
        )
    bound, limit = Quantity(totals.op_bound_s, "s"), _limit(analysis)
    if totals.measured_s is None:
        other = measurement is not None and not measurement.of_the_session
        timed = " The step that was timed is not the recorded one." if other else ""
        return (
            f"These ops, one by one, take at least {bound}: {limit}.{_predicted_sentence(analysis)}{timed}"
            f"{_without_peaks(analysis)}{_there_sentence(analysis)}"
        )
    speed = totals.measured_s / totals.op_bound_s
    times = f"{speed:.1f} times" if speed < 100 else f"{speed:,.0f} times"
    text = (
        f"The step took {Quantity(totals.measured_s, 's')}, {times} the {bound} that its ops need at the speed "
        f"of light ({percent(1 / speed)} efficiency); {limit}.{_unbounded_sentence(analysis)}{_without_peaks(analysis)}"
        f"{_loss_sentence(analysis)}{_idle_sentence(analysis)}"
    )
    if measurement is not None and measurement.disturbed:
        taken = percent(measurement.others_share or 0.0)
        text += f" Other programs took {taken} of the CPU meanwhile: measure again on a quiet machine."
    return text


def _limit(analysis: Analysis) -> str:
    """What limits most of the bound, and the op that spends most of it there."""
    bounded = [(op.bound.limiter, op) for op in analysis.operations if op.bound and op.bound_s]
    shares = seconds_by((limiter, op.bound_s) for limiter, op in bounded)
    limiter, seconds = next(iter(shares.items()))
    most = next(iter(seconds_by((op.name, op.bound_s) for of, op in bounded if of is limiter)))
    share = percent(seconds / sum(shares.values()))
    return f"{share} of the bound is limited by {_WHERE[limiter]}, most of it in {plain_name(most)}"


def _loss_sentence(analysis: Analysis) -> str:
    """The largest of what the step takes beyond its bound."""
    losses = {gap.name: gap.seconds for gap in analysis.waterfall}
    if "overhead and idle" not in losses:
        return ""
    outside, slow = losses["overhead and idle"], losses.get("kernels slower than their bound", 0.0)
    waited = losses.get("exposed communication beyond its bound", 0.0)
    if waited > max(outside, slow):
        return f" The largest loss is communication that nothing hides: {Quantity(waited, 's')} beyond its bound."
    if outside > slow:
        return f" The largest loss is time outside the ops: {Quantity(outside, 's')} of overhead."
    if slow > 0:
        return f" The largest loss is inside the ops, which run {Quantity(slow, 's')} longer than they must."
    return ""


def _idle_sentence(analysis: Analysis) -> str:
    return idle_sentence(analysis.timeline, analysis.measured_on) if analysis.timeline is not None else ""


def _without_bound(analysis: Analysis) -> str:
    """Why there is nothing to compare with."""
    if not analysis.totals.calls and analysis.timeline is not None:
        text = (
            "The trace has the device's work, and no op on the host that launched it: nothing can be bounded. Record "
            "it with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True)."
        )
        return text + _idle_sentence(analysis)
    if not analysis.totals.calls:
        return (
            "No ops were recorded: the program ran none while the recording was open, or ran them in another thread or "
            "process. A recording sees the ops of the thread that opened it: open it in the thread that works."
        )
    if not analysis.coverage.calls:
        first = analysis.coverage.uncosted[0]
        why = f"The reason for {plain_name(first.name)}: {first.reason}."
        return f"None of the ops has a cost, so nothing can be bounded. {why}{_idle_sentence(analysis)}"
    return "The recorded ops do no work that a roof of this device bounds."


def _without_peaks(analysis: Analysis) -> str:
    missing = [name for name in analysis.unknown_peaks if "matrix" in name]
    if not missing:
        return ""
    return f" Arithmetic is not bounded: {analysis.device.name} has no known {missing[0]}; try another --dtype."


def _predicted_sentence(analysis: Analysis) -> str:
    """What the step is predicted to take, for the conclusion of a report on what was not measured."""
    predicted, wall = analysis.totals.predicted, analysis.totals.predicted_wall
    if predicted is None or not predicted.time_s:
        return ""
    if wall is None or wall.host is IN_THE_OPS:
        return f" They are predicted to take {with_interval(predicted)}."
    who = "the host, which issues the ops, takes longest" if wall.host_bound else "the device takes longest"
    return (
        f" The step is predicted to take {with_interval(wall)} on the wall clock; {who}. The device alone, "
        f"{AS_A_GRAPH}, is predicted to take {Quantity(predicted.time_s, 's')}."
    )


def _there_sentence(analysis: Analysis) -> str:
    """How the step on the device where it was measured compares with the bound here, and how idle that device was."""
    there, bound_s = analysis.there, analysis.totals.op_bound_s
    if there is None:
        return ""
    measured_s, text = there.totals.measured_s, ""
    if measured_s:
        text = (
            f" On {analysis.measured_on}, where it was measured, the step took {Quantity(measured_s, 's')}: "
            f"{measured_s / bound_s:,.1f} times this bound."
        )
    return text + _idle_sentence(analysis)


def _unbounded_sentence(analysis: Analysis) -> str:
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
