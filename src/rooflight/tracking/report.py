"""The report of a step: by phase, by layer type, by function, and the modules that take longest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from rooflight.records.quantity import Quantity
from rooflight.records.report import Cell, Report, Table
from rooflight.records.session import Measurement
from rooflight.roofline.analysis import Analysis, Group
from rooflight.roofline.report import data_of, group_data, report_of
from rooflight.tracking.observer import Step

SCHEMA = "rooflight.step/1"
_MORE_ROWS = 20
_SEE = "a higher top shows them"
_FIRST_PASS = "Times are those of a first pass, with all that libraries set up in it: warm up before for steady ones."
_RECORDED_CLOCK = "spans of modules while they were recorded, which slows them: upper figures"

Times = Mapping[str, float] | None
"""Seconds by name of row; None takes the times of single ops, where the analysis has them."""


def report_of_step(step: Step, *, title: str = "", top: int = 10) -> Report:
    """The report of a step of a loop. Times are its spans, unless it was being recorded: then those of its ops, which
    are not known on CUDA.

    Raises ValueError for a step of unknown structure.
    """
    if step.structure is None:
        raise ValueError("the step's structure is not known: report one that is")
    if step.recorded and step.structure.analysis.session.measurement is not None:
        report = report_of_analysis(step.structure.analysis, title=title or f"iteration {step.number}", top=top)
        return replace(report, notes=(*report.notes, *([_FIRST_PASS] if not step.number else [])))
    return _report(
        step.structure.analysis,
        step.structure.timed,
        title=title or f"iteration {step.number}",
        top=top,
        wall_s=step.spans.wall_s,
        by_phase=step.seconds_by["phase"],
        by_layer=step.seconds_by["layer"],
        by_module=step.seconds_by["module"],
        clock=_RECORDED_CLOCK if step.recorded else "spans of modules, the gaps between their ops included",
    )


def report_of_analysis(analysis: Analysis, *, title: str, top: int = 10) -> Report:
    """The report of what was recorded in one pass, with the times of single ops if the recording took them."""
    measurement = analysis.session.measurement
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
    wall_s: float | None = None,
    by_phase: Times = None,
    by_layer: Times = None,
    by_module: Times = None,
) -> Report:
    if wall_s is not None:
        analysis = _with_wall(analysis, wall_s)
    base = report_of(analysis, top=top)
    classes = {module.path: module.class_name for module in timed.session.modules}
    tables = [
        _table("By phase", "phase", timed.by("phase"), by_phase, timed, top=max(top, _MORE_ROWS)),
        _table("By layer type", "layer", timed.by("layer"), by_layer, timed, top=top),
    ]
    if len(analysis.session.functions) > 1:
        title_of = "By function" if by_layer is None else "By function (measured: ops of the iteration recorded)"
        tables.append(_table(title_of, "function", analysis.by("function"), None, analysis, top=top))
    tables.append(_module_table(timed, by_module, classes, top))
    return Report(
        title=f"Speed of light: {title} on {analysis.device.name}",
        schema=SCHEMA,
        facts=tuple(_facts(analysis, base, clock, is_loop=wall_s is not None)),
        tables=(*(table for table in base.tables if table.title == "Waterfall"), *tables, *_kept(base)),
        notes=(*base.notes, *_contradictions(timed, by_layer)),
        conclusion=base.conclusion,
        data={
            **data_of(analysis),
            "step": {
                "measured_s": wall_s,
                "clock": clock,
                "by_phase": _timed_data(timed.by("phase"), by_phase),
                "by_layer": _timed_data(timed.by("layer"), by_layer),
                "by_module": _timed_data(timed.by("module"), by_module),
                "by_function": [group_data(group) for group in analysis.by("function")],
            },
        },
    )


def _facts(analysis: Analysis, base: Report, clock: str, *, is_loop: bool) -> Iterable[tuple[str, Cell]]:
    counted = analysis.by("layer")
    inside = sum(group.calls for group in counted if not group.name.startswith("("))
    for name, value in base.facts:
        if name == "measured ops" and is_loop:
            continue
        if name == "operations":
            yield name, f"{value}; {inside:,} calls inside modules, {analysis.totals.calls - inside:,} outside"
        else:
            yield name, value
    yield "times", clock


def _kept(base: Report) -> Iterable[Table]:
    """The tables of an analysis that a step's report takes over as they are."""
    ours = ("By phase", "By layer type", "By op", "By function", "Waterfall", "Top operations")
    return (replace(table, see=_SEE) for table in base.tables if not table.title.startswith(ours))


def _table(title: str, column: str, groups: tuple[Group, ...], times: Times, analysis: Analysis, *, top: int) -> Table:
    total = sum(times.values()) if times is not None else analysis.totals.ops_measured_s
    names = {group.name for group in groups}
    found: list[tuple[str, Group | None]] = [(group.name, group) for group in groups]
    # where time passed although the step recorded ran nothing there: the code of containers, loading data
    found += [(name, None) for name in times or () if name not in names]
    found.sort(key=lambda row: -(_seconds(row[0], row[1], times) or (row[1].bound_s if row[1] else 0.0)))
    rows: list[tuple[Cell, ...]] = []
    for name, group in found[:top]:
        measured = _seconds(name, group, times)
        work = (group.calls, Quantity(group.matrix_flops, "FLOP"), Quantity(group.bytes_moved, "B")) if group else ()
        rows.append(
            (
                name,
                *(work or (0, None, None)),
                *_bound_cells(group, measured, times),
                None if measured is None or not total else Quantity(measured / total, "%"),
            )
        )
    return Table(
        title=title,
        columns=(column, "calls", "matrix", "bytes", "estimated", "measured", "efficiency", "bound", "share"),
        rows=tuple(rows),
        optional=("matrix", "bytes", "calls"),
        left_out=max(0, len(found) - top),
        see=_SEE,
    )


def _module_table(analysis: Analysis, times: Times, classes: Mapping[str, str], top: int) -> Table:
    groups = analysis.by("module")
    ordered = sorted(groups, key=lambda group: -(_seconds(group.name, group, times) or group.bound_s))
    return Table(
        title=f"Top {min(top, len(ordered))} modules by time",
        columns=("layer", "type", "estimated", "measured", "efficiency", "bound"),
        rows=tuple(
            (group.name, classes.get(group.name, ""), *_bound_cells(group, _seconds(group.name, group, times), times))
            for group in ordered[:top]
        ),
        left_out=max(0, len(ordered) - top),
        see=_SEE,
        note="Estimated is the op bound. Each module's own code; what it calls has rows of its own.",
    )


def _bound_cells(group: Group | None, measured: float | None, times: Times) -> tuple[Cell, Cell, Cell, Cell]:
    """Estimated, measured, efficiency and limiter of a row."""
    if group is None:
        return None, None if measured is None else Quantity(measured, "s"), None, None
    efficiency = group.efficiency if times is None else group.bound_s / measured if measured else None
    return (
        Quantity(group.bound_s, "s"),
        None if measured is None else Quantity(measured, "s"),
        None if efficiency is None else Quantity(efficiency, "%"),
        group.limiter,
    )


def _seconds(name: str, group: Group | None, times: Times) -> float | None:
    if times is not None:
        return times.get(name)
    return group.measured_s if group else None


def _timed_data(groups: tuple[Group, ...], times: Times) -> list[dict[str, object]]:
    return [{**group_data(group), "measured_s": _seconds(group.name, group, times)} for group in groups]


def _contradictions(analysis: Analysis, times: Times) -> Iterable[str]:
    for group in analysis.by("layer"):
        measured = _seconds(group.name, group, times)
        if times is not None and measured is not None and 0 < measured < group.bound_s:
            yield (
                f"{group.name} took {Quantity(measured, 's')}, less than its bound of {Quantity(group.bound_s, 's')}: "
                "a cost, a roof or a clock is wrong, or the step did other work than the one recorded."
            )


def _with_wall(analysis: Analysis, wall_s: float) -> Analysis:
    """The analysis of a step that took ``wall_s``; its ops were timed while another was recorded, if at all."""
    session = analysis.session
    measurement = session.measurement or Measurement(
        wall_samples_s=np.empty(0), op_samples_s=np.empty((0, len(session))), clock="spans of modules"
    )
    session = session.with_measurement(replace(measurement, wall_samples_s=np.array([wall_s])))
    return analysis.of(session)
