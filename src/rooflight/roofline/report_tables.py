"""The tables of an analysis."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rooflight.records.quantity import count_of
from rooflight.records.report import Cell, Column, Table
from rooflight.records.signature import OpSignature
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.communication_report import collectives_table
from rooflight.roofline.elsewhere_report import groups_there, operations_there, there_explained
from rooflight.roofline.memory_report import memory_tables
from rooflight.roofline.op_names import plain_name
from rooflight.roofline.predicted_report import columns_explained, source_text
from rooflight.roofline.sums import Group, Operation
from rooflight.roofline.timeline_report import timeline_tables

_SHOWN_CONTRADICTIONS: Final = 5
_FEW_PHASES: Final = 20
_MEASURED: Final = (Column("measured", "s"), Column("efficiency", "%"))
_THERE: Final = Column("measured there", "s")
_PREDICTED: Final = Column("predicted", "s")
_ERROR: Final = Column("error", "%")


def analysis_tables(analysis: Analysis, top: int) -> Iterable[Table]:
    """All tables for which the analysis has rows; ``top`` is how many rows of long ones are shown."""
    if not analysis.totals.calls:
        yield from timeline_tables(analysis, top)
        return  # the conclusion says why
    yield waterfall_table(analysis)
    yield from timeline_tables(analysis, top)
    yield _group_table("By phase", "phase", analysis, top=max(top, _FEW_PHASES))
    yield _group_table("By layer type", "layer", analysis, top=top)
    yield _group_table("By op", "op", analysis, top=top)
    yield _operation_table(analysis, top)
    if analysis.communication.collectives:
        yield collectives_table(analysis.communication, top)
    yield from memory_tables(analysis.memory, top)
    if analysis.coverage.uncosted:
        yield _uncosted_table(analysis, top)
    if analysis.contradictions:
        yield _contradictions_table(analysis)


def waterfall_table(analysis: Analysis) -> Table:
    """The gaps from the program bound to the clock on the wall."""
    gaps = analysis.waterfall
    whole = gaps[-1].until_s
    return Table(
        id="waterfall",
        title="Waterfall",
        columns=(
            Column("gap"),
            Column("time", "s"),
            Column("so far", "s"),
            Column("share", "%"),
            Column("remedy"),
        ),
        rows=tuple(
            (gap.name, gap.seconds, gap.until_s, gap.seconds / whole if whole else None, gap.remedy) for gap in gaps
        ),
    )


def _group_table(title: str, key: str, analysis: Analysis, *, top: int) -> Table:
    times, there = _time_columns(analysis), groups_there(analysis, key)
    total = analysis.totals.op_bound_s
    rows: list[tuple[Cell, ...]] = [
        (
            plain_name(group.name) if key == "op" else group.name,
            group.calls,
            group.matrix_flops,
            group.vector_flops,
            group.bytes_moved,
            group.bound_s,
            group.bound_s / total if total else None,
            group.limiter,
            *_time_cells(group, times, there.get(group.name)),
        )
        for group in analysis.by(key)
    ]
    return Table(
        id=f"by_{key}",
        title=title,
        columns=(
            Column(key),
            Column("calls"),
            Column("matrix", "FLOP"),
            Column("vector", "FLOP"),
            Column("bytes", "B"),
            Column("bound", "s"),
            Column("share", "%"),
            Column("limiter"),
            *times,
        ),
        rows=tuple(rows),
        top=top,
        optional=("vector", "calls", "matrix", "bytes"),
        note=(columns_explained(analysis) or there_explained(analysis)) if key == "phase" else "",
    )


def _time_columns(analysis: Analysis) -> tuple[Column, ...]:
    if analysis.there is not None and analysis.there.totals.ops_measured_s is not None:
        return (_THERE, _PREDICTED) if analysis.predicts else (_THERE,)
    if analysis.totals.ops_measured_s is not None:
        return (*_MEASURED, _PREDICTED, _ERROR) if analysis.predicts else _MEASURED
    return (_PREDICTED,) if analysis.predicts else ()


def _time_cells(row: Group | Operation, columns: tuple[Column, ...], there_s: float | None) -> list[Cell]:
    predicted = row.predicted
    cells: dict[str, Cell] = {
        "measured": row.measured_s,
        "efficiency": row.efficiency,
        "measured there": there_s,
        "predicted": predicted.time_s if predicted else None,
        "error": predicted.error if predicted else None,
    }
    return [cells[column.name] for column in columns]


def _operation_table(analysis: Analysis, top: int) -> Table:
    predicts, times, there = analysis.predicts, _time_columns(analysis), operations_there(analysis)
    rows: list[tuple[Cell, ...]] = [
        (
            plain_name(operation.signature.name),
            shapes_text(operation.signature),
            _modules_text(operation.modules),
            operation.calls,
            operation.bound_s,
            *_time_cells(operation, times, there.get(operation.signature)),
            _limiter_text(operation),
            *([source_text(operation.estimate)] if predicts else []),
        )
        for operation in analysis.operations
    ]
    order = "measured time" if _MEASURED[0] in times else "predicted time" if predicts else "bound"
    return Table(
        id="operations",
        title=f"Top operations by {order}",
        columns=(
            Column("op"),
            Column("shapes"),
            Column("where"),
            Column("calls"),
            Column("bound", "s"),
            *times,
            Column("limiter"),
            *([Column("source")] if predicts else []),
        ),
        rows=tuple(rows),
        top=top,
        optional=("calls", "where", "shapes"),
    )


def _uncosted_table(analysis: Analysis, top: int) -> Table:
    return Table(
        id="not_costed",
        title="Not costed",
        columns=(
            Column("op"),
            Column("modules"),
            Column("calls"),
            Column("bytes of its tensors", "B"),
            Column("why"),
        ),
        rows=tuple(
            (plain_name(op.name), _first_modules(op.modules), op.calls, op.bytes, op.reason)
            for op in analysis.coverage.uncosted
        ),
        top=top,
        note="These are missing from every total above. Give ops a formula with @rooflight.formula, modules with "
        "@rooflight.module_formula.",
    )


def _contradictions_table(analysis: Analysis) -> Table:
    return Table(
        id="contradictions",
        title="Contradictions: measured faster than the bound",
        columns=(
            Column("op"),
            Column("shapes"),
            Column("calls"),
            Column("bound", "s"),
            Column("fastest median", "s"),
        ),
        rows=tuple(
            (
                plain_name(found.signature.name),
                shapes_text(found.signature),
                found.calls,
                found.bound_s,
                found.measured_s,
            )
            for found in analysis.contradictions
        ),
        top=_SHOWN_CONTRADICTIONS,
        note="A cost, a roof or a clock is wrong: calibrate again on an idle machine, then report it.",
    )


def shapes_text(op: OpSignature) -> str:
    """Input shapes as ``4x6 6x5``, long lists cut."""
    shapes = ["x".join(map(str, shape)) or "scalar" for shape in op.input_shapes]
    more = f" +{len(shapes) - 3}" if len(shapes) > 3 else ""
    return " ".join(shapes[:3]) + more


def _limiter_text(operation: Operation) -> str:
    if operation.bound is None:
        return "not costed"
    return operation.bound.limiter.value


def _first_modules(modules: tuple[str, ...]) -> str | None:
    """The names of a few modules, so that one knows where to look."""
    named = [module for module in modules if module]
    rest = f" and {len(named) - 2} more" if len(named) > 3 else ""
    return ", ".join(named[: 2 if rest else 3]) + rest or None


def _modules_text(modules: tuple[str, ...]) -> str | None:
    if len(modules) == 1:
        return modules[0] or None
    return count_of(len(modules), "module")
