"""The measured side of an analysis: how long the step took, how far its times can be trusted, and what contradicts."""

from __future__ import annotations

from collections.abc import Iterable

from rooflight.records.document import Fields
from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.records.report import Cell
from rooflight.records.session import Measurement, other_step
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.communication_report import exposure_text
from rooflight.roofline.elsewhere_report import there_facts
from rooflight.roofline.measured_on import unknown_gpu

_SCATTER = 1.5  # slowest step over fastest, from which on the median is doubtful


class MeasurementData(Fields, frozen=True, kw_only=True):
    """How the times were taken, and how far they can be trusted.

    ``others_share`` is the share of the CPU, of 1, that other programs took while whole steps were timed; from
    ``BUSY_SHARE`` (0.05) on, the times are ``disturbed``. ``same_calls`` is the share of calls that the timed step and
    the recorded one have in common; where it is too low, the timed step is not ``of_the_session``, and no measured
    figure is compared with a bound. ``beats_light``: the step was faster than its program bound, a contradiction.
    """

    clock: str
    others_share: float | None
    disturbed: bool
    same_calls: float | None
    of_the_session: bool
    beats_light: bool


def measurement_data(analysis: Analysis) -> MeasurementData | None:
    """None for a session that was not measured."""
    found = analysis.measurement
    if found is None:
        return None
    return MeasurementData(
        clock=found.clock,
        others_share=found.others_share,
        disturbed=found.disturbed,
        same_calls=found.same_calls,
        of_the_session=found.of_the_session,
        beats_light=analysis.beats_light,
    )


def measured_facts(analysis: Analysis) -> Iterable[tuple[str, Cell]]:
    """What the head of the report shows of times."""
    totals, measurement = analysis.totals, analysis.measurement
    if measurement is None:
        if analysis.measured_on:
            yield from there_facts(analysis)
        else:
            yield "measured", "not measured"
        return
    walls = measurement.wall_samples_s
    if not len(walls):
        yield "measured", "ops only, not whole steps"
    else:
        span = f"{Quantity(float(walls.min()), 's')} to {Quantity(float(walls.max()), 's')}"
        several = f" (median of {len(walls)}, {span})" if len(walls) > 1 else ""
        wall = f"{Quantity(measurement.wall_s or 0.0, 's')}{several}"
        if measurement.of_the_session:
            yield "measured step", wall
        else:
            yield "timed step", f"{wall}: not the recorded step"
    exposure = exposure_text(analysis.communication)
    if exposure:
        yield "communication", exposure
    if totals.ops_measured_s is not None:
        yield "measured ops", f"{Quantity(totals.ops_measured_s, 's')} in sum ({measurement.clock})"
    if totals.measured_s and totals.op_bound_s:
        share = percent(totals.op_bound_s / totals.measured_s)
        doubt = ": a contradiction, see the notes" if analysis.beats_light else ""
        yield "efficiency", f"{share} (op bound / measured step){doubt}"


def measured_notes(analysis: Analysis) -> Iterable[str]:
    """How far the times can be trusted."""
    measurement = analysis.measurement
    if analysis.measured_on:
        yield (
            f"Measured on {analysis.measured_on}, not on {analysis.device.name}: no efficiency is computed from bounds "
            "of one and times of the other."
        )
    if unknown := unknown_gpu(analysis.session, analysis.device):
        yield (
            f"{unknown}, on which this was measured, is not in the catalog: {analysis.device.name} stands for it, and "
            "its efficiencies are right as far as the two are alike."
        )
    if measurement is None:
        return
    yield from _other_threads(analysis)
    if not measurement.of_the_session:
        yield _sentence(other_step(measurement))
    elif measurement.same_calls is not None and measurement.same_calls < 1:
        yield (
            f"Run again, the step had {percent(measurement.same_calls)} of its calls in common with the recorded one: "
            "its ops or their shapes change from run to run, so bound and times are of somewhat different work."
        )
    if measurement.of_the_session:
        yield from _disturbances(analysis, measurement)
        yield from _contradictions(analysis)
    if not len(measurement.op_samples_s):
        if measurement.of_the_session:
            yield f"No times for single ops ({measurement.clock}; a compiled model is recorded as it runs uncompiled)."
        return
    if len(measurement.wall_samples_s) and (analysis.busy_s or 0.0) > (analysis.totals.measured_s or 0.0):
        yield "The ops, timed one by one, took longer than whole steps: their times are upper limits."
    if untimed := analysis.untimed_calls:
        yield (
            f"{count_of(untimed, 'call')} could not be timed (most often a number that the program reads back): the "
            "efficiency of such calls is unknown."
        )


def _other_threads(analysis: Analysis) -> Iterable[str]:
    """Where the step ran on another number of threads than its roofs are of."""
    environment, of_roofs = analysis.session.environment, analysis.device.threads
    ran = environment.get("torch_threads", "")
    if analysis.device.kind != "cpu" or environment.get("device_kind") != "cpu" or of_roofs is None:
        return
    if ran.isdecimal() and int(ran) != of_roofs:
        effect = (
            "more threads can be faster than this bound"
            if int(ran) > of_roofs
            else "a part of what it lost are threads that it did not use"
        )
        yield f"Threads: the step ran on {ran}, the roofs are those of {of_roofs}; {effect}."


def _disturbances(analysis: Analysis, measurement: Measurement) -> Iterable[str]:
    walls = measurement.wall_samples_s
    if measurement.disturbed:
        on_gpu = analysis.device.kind == "cuda"
        effect = (
            "that delays the launching of kernels, not the kernels themselves"
            if on_gpu
            else "the measured times may be several times too long"
        )
        yield (
            f"Other programs took {percent(measurement.others_share or 0.0)} of the CPU while the step was timed: "
            f"{effect}. Run it again on a quiet machine."
        )
    elif len(walls) and walls.max() > _SCATTER * walls.min():
        yield (
            f"Steps differ widely in time: the slowest took {walls.max() / walls.min():.1f} times as long as the "
            "fastest. Their work changes from run to run, or something disturbed them: measure again."
        )


def _contradictions(analysis: Analysis) -> Iterable[str]:
    totals = analysis.totals
    if totals.measured_s is None:
        return
    measured, bounds = Quantity(totals.measured_s, "s"), analysis.program
    program, warm = Quantity(bounds.program_bound_s, "s"), Quantity(bounds.warm.program_bound_s, "s")
    if analysis.beats_light:
        yield (
            f"Contradiction: the measured step, {measured}, is shorter than its program bound, {program}, which "
            "nothing real beats. Likely causes: the timed step does less work than the recorded one; the roofs are too "
            "low, as after a calibration beside other programs or on fewer threads (rooflight calibrate measures them "
            f"again); a cost is wrong{_caches_explain(analysis)}."
        )
    elif totals.measured_s < bounds.program_bound_s:
        yield (
            f"The measured step, {measured}, is shorter than its program bound, {program}, and longer than that bound "
            f"with a full cache, {warm}: part of its data came from a cache."
        )
    elif totals.measured_s < totals.op_bound_s:
        yield (
            f"The measured step, {measured}, is shorter than its ops one by one can be, "
            f"{Quantity(totals.op_bound_s, 's')}, and longer than its program bound, {program}: it ran fused or "
            "overlapped, as a compiled program does, or a roof is too low."
        )


def _caches_explain(analysis: Analysis) -> str:
    bounds = analysis.program
    if bounds.warm.program_bound_s < bounds.program_bound_s:
        return f"; even with a full cache the bound is {Quantity(bounds.warm.program_bound_s, 's')}"
    if len(analysis.device.memory) < 2:
        return "; the data came from a cache, of which the roofs have none"
    return ""


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
