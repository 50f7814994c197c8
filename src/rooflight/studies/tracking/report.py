"""The report of a step: by phase, by layer type, by function, and the modules that take longest; and its figures as
scalars, for TensorBoard and W&B.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from rooflight.records.document import Fields
from rooflight.records.measurement import Measurement
from rooflight.records.quantity import count_of
from rooflight.records.report import Cell, Report, Table
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.costed import ran_elsewhere
from rooflight.roofline.tables.document import AnalysisDocument, analysis_data
from rooflight.roofline.tables.report import report_of
from rooflight.roofline.time_by_place import (
    SEE,
    PlaceFigures,
    TimeByPlace,
    contradictions,
    modules_table,
    places_table,
    time_by_place,
)
from rooflight.studies.tracking.observer import ObservedStep

_MORE_ROWS: Final = 20
_FIRST_PASS: Final = (
    "Times are those of a first pass, with all that libraries set up in it: warm up before for steady ones."
)
_RECORDED_CLOCK: Final = "spans of modules while they were recorded, which slows them: upper figures"
_ELSEWHERE: Final = "none by place: the loop ran on another device than that of the bounds"
_REPLACED: Final = ("by_phase", "by_layer", "by_op", "operations", "account")
"""Tables of an analysis that a step's report has its own of, or leaves out."""


class StepTimes(Fields, frozen=True, kw_only=True):
    """A step by its places. ``measured_s`` is None for one pass of which only the ops were timed, if at all."""

    measured_s: float | None
    clock: str
    by_phase: tuple[PlaceFigures, ...]
    by_layer: tuple[PlaceFigures, ...]
    by_module: tuple[PlaceFigures, ...]
    by_function: tuple[PlaceFigures, ...] = ()


class StepDocument(AnalysisDocument, frozen=True, kw_only=True, tag="rooflight.step/1"):
    """A step of a tracked loop: the analysis of what it did, and its times."""

    step: StepTimes


def report_of_step(step: ObservedStep, *, title: str = "", top: int = 10) -> Report:
    """The report of a step of a loop. Times are its spans, unless it was being recorded: then those of its ops, which
    are not known on CUDA.

    Raises ValueError for a step of unknown structure.
    """
    if step.structure is None:
        raise ValueError("the step's structure is not known: report one that is")
    title = title or f"iteration {step.number}"
    if step.recorded and step.structure.analysis.measurement is not None:
        report = report_of_analysis(step.structure.analysis, title=title, top=top)
        return replace(report, notes=(*report.notes, *([_FIRST_PASS] if not step.number else [])))
    return _report(
        _with_wall(step.structure.analysis, step.spans.wall_s),
        step.structure.timed,
        title=title,
        top=top,
        clock=_RECORDED_CLOCK if step.recorded else "spans of modules, the gaps between their ops included",
        seconds_by=step.seconds_by,
        wall_s=step.spans.wall_s,
    )


def report_of_analysis(analysis: Analysis, *, title: str, top: int = 10) -> Report:
    """The report of what was recorded in one pass, with the times of single ops if the recording took them."""
    measurement = analysis.measurement
    return _report(
        analysis, analysis, title=title, top=top, clock=measurement.clock if measurement is not None else "not measured"
    )


def _report(
    analysis: Analysis,
    timed: Analysis,
    *,
    title: str,
    top: int,
    clock: str,
    seconds_by: Mapping[str, Mapping[str, float]] | None = None,
    wall_s: float | None = None,
) -> Report:
    """``timed`` has the ops under the places that ``seconds_by`` times; None takes the times of single ops. There are
    none beside the bounds of another device than the one that ran.
    """
    base = report_of(analysis, top=top)
    if analysis.measured_on:
        clock, seconds_by, wall_s = _ELSEWHERE, None, None
    by = {
        key: time_by_place(timed, key, seconds_by[key] if seconds_by else None, wall_s)
        for key in ("phase", "layer", "module")
    }
    if len(analysis.session.functions) > 1:
        by["function"] = time_by_place(analysis, "function")
    places = {f"by_{key}": times.places for key, times in by.items()}
    classes = {module.path: module.class_name for module in timed.session.modules}
    replaced = _replaced_tables(base, by, classes, top, of_spans=seconds_by is not None)
    return Report(
        title=f"Speed of light: {title} on {analysis.device.name}",
        data=StepDocument.view(
            analysis_data(analysis, base.conclusion), step=StepTimes.view(measured_s=wall_s, clock=clock, **places)
        ),
        facts=tuple(_facts(analysis, base, clock, is_loop=seconds_by is not None)),
        tables=(
            *(table for table in replaced if table.rows),
            *(replace(table, see=SEE) for table in base.tables if table.id not in _REPLACED),
        ),
        series=base.series,
        notes=(*base.notes, *(contradictions(by["layer"]) if seconds_by else ())),
        conclusion=base.conclusion,
    )


def _replaced_tables(
    base: Report, by: Mapping[str, TimeByPlace], classes: Mapping[str, str], top: int, *, of_spans: bool
) -> Iterable[Table]:
    if (account := base.table("account")) is not None:  # there is none of an iteration without ops
        yield account
    yield places_table(by["phase"], title="By phase", top=max(top, _MORE_ROWS))
    yield places_table(by["layer"], title="By layer type", top=top)
    if "function" in by:
        title = "By function (measured: ops of the iteration recorded)" if of_spans else "By function"
        yield places_table(by["function"], title=title, top=top)
    modules = modules_table(by["module"], classes, title="", top=top)
    yield replace(modules, title=f"Top {count_of(len(modules.shown), 'module')} by time")


def _facts(analysis: Analysis, base: Report, clock: str, *, is_loop: bool) -> Iterable[tuple[str, Cell]]:
    counted = analysis.by("layer")
    inside = sum(group.calls for group in counted if not group.name.startswith("("))
    where = f"; {count_of(inside, 'call')} inside modules, {analysis.totals.calls - inside:,} outside"
    for name, value in base.facts:
        if name == "measured ops" and is_loop:
            continue
        yield name, f"{value}{where}" if name == "operations" else value
    yield "times", clock


def _with_wall(analysis: Analysis, wall_s: float) -> Analysis:
    """The analysis of a step that took ``wall_s``; its ops were timed while another was recorded, if at all."""
    session = analysis.session
    measurement = analysis.measurement or Measurement(
        wall_samples_s=np.empty(0), op_samples_s=np.empty((0, len(session))), clock="spans of modules"
    )
    session = session.with_measurement(replace(measurement, wall_samples_s=np.array([wall_s])))
    return analysis.of(session)


def scalars_of(step: ObservedStep) -> dict[str, float]:
    """Name to value, SI units. Bounds and efficiencies are missing for a step whose structure is not known, and
    efficiencies for one that was being recorded, which takes longer than it would have, or ran on another device than
    that of the bounds.

    ``sol/`` is the whole step, ``sol_phase/NAME/`` a phase, ``sol_layer/CLASS/`` the modules of a class (their own
    code; what they call counts where it is). Efficiency is op bound / time, of a compiled step fused bound / time.
    """
    wall_s = step.spans.wall_s
    scalars = {"sol/iteration_s": wall_s, "sol/recorded": float(step.recorded)}
    structure = step.structure
    timed = not step.recorded
    if structure is not None:
        timed = timed and not ran_elsewhere(structure.analysis.session, structure.analysis.device)
        totals, program = structure.analysis.totals, structure.analysis.program
        scalars |= {
            "sol/op_bound_s": totals.op_bound_s,
            "sol/fused_bound_s": program.fused_bound_s,
            "sol/program_bound_s": program.program_bound_s,
            "sol/matrix_flops": float(totals.matrix_flops),
            "sol/bytes_moved": float(totals.bytes_moved),
        }
        if structure.analysis.coverage.calls is not None:
            scalars["sol/coverage"] = structure.analysis.coverage.calls
        if totals.bytes_sent:
            scalars["sol/bytes_sent"] = float(totals.bytes_sent)
        if timed and wall_s:
            scalars["sol/efficiency"] = structure.analysis.leading_bound[1] / wall_s
        if not step.recorded and wall_s:
            scalars["sol/matrix_flops_per_s"] = totals.matrix_flops / wall_s
    for prefix, key in (("sol_phase", "phase"), ("sol_layer", "layer")):
        scalars |= {f"{prefix}/{name}/seconds": length for name, length in step.seconds_by[key].items()}
        if structure is not None and timed:
            places = time_by_place(structure.timed, key, step.seconds_by[key]).places
            known = {place.name: place.efficiency for place in places if place.efficiency is not None}
            scalars |= {f"{prefix}/{name}/efficiency": efficiency for name, efficiency in known.items()}
    return scalars
