"""An Analysis as a Report: what `rooflight analyze` shows, in every format."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rooflight.costs.cost import Uncosted
from rooflight.devices.spec import DeviceSpec
from rooflight.records.quantity import Quantity, percent
from rooflight.records.report import Cell, Report, Table
from rooflight.records.signature import OpSignature
from rooflight.roofline.analysis import Analysis, Group, Operation
from rooflight.roofline.bound import Limiter
from rooflight.roofline.communication_report import collectives_table, communication_data, exposure_text
from rooflight.roofline.memory_report import memory_data, memory_fact, memory_tables
from rooflight.roofline.op_names import plain_name
from rooflight.roofline.predicted_report import (
    columns_explained,
    predicted_facts,
    predicted_notes,
    predicted_sentence,
    prediction_data,
    row_data,
    source_text,
)

SCHEMA = "rooflight.analysis/1"
_SHOWN_CONTRADICTIONS = 5
_SCATTER = 1.5  # slowest step over fastest, from which on the median is doubtful


def report_of(analysis: Analysis, *, top: int = 10, notes: Iterable[str] = ()) -> Report:
    """The report of an analysis; ``top`` limits the rows of its long tables. Raises ValueError for ``top`` < 1."""
    if top < 1:
        raise ValueError(f"--top {top}: at least 1 row")
    return Report(
        title=f"Speed of light: {analysis.target or 'recorded session'} on {analysis.device.name}",
        schema=SCHEMA,
        facts=tuple(_facts(analysis)),
        tables=tuple(_tables(analysis, top)),
        notes=(*notes, *analysis.session.notes, *_notes(analysis)),
        conclusion=conclusion(analysis),
        data=data_of(analysis),
    )


def conclusion(analysis: Analysis) -> str:
    """How far from the speed of light, and what limits it, in plain words."""
    totals = analysis.totals
    if not totals.calls:
        return "Nothing was recorded: no torch operation ran."
    if not totals.op_bound_s:
        return "The recorded ops do no work that this device could be slow at."
    limits = _limiter_shares(analysis.operations)
    limiter, share = max(limits.items(), key=lambda item: item[1])
    where = {"compute": "arithmetic", "memory": "memory bandwidth", "network": "the network"}[limiter.value]
    bound = Quantity(totals.op_bound_s, "s")
    limit = f"{percent(share)} of that is limited by {where}, most of it in {_most_of(limiter, analysis)}"
    if totals.measured_s is None:
        predicted = predicted_sentence(analysis)
        return f"These ops, one by one, take at least {bound}: {limit}.{predicted}{_without_peaks(analysis)}"
    speed = totals.measured_s / totals.op_bound_s
    text = (
        f"The step took {Quantity(totals.measured_s, 's')}, {_times(speed)} the {bound} that its ops need at the speed "
        f"of light ({percent(1 / speed)} efficiency); {limit}.{_without_peaks(analysis)}"
    )
    losses = {gap.name: gap.seconds for gap in analysis.waterfall}
    if "overhead and idle" in losses:
        outside, slow = losses["overhead and idle"], losses["kernels slower than their bound"]
        waited = losses.get("exposed communication beyond its bound", 0.0)
        if waited > max(outside, slow):
            text += f" The largest loss is communication that nothing hides: {Quantity(waited, 's')} beyond its bound."
        elif outside > slow:
            text += f" The largest loss is time outside the ops: {Quantity(outside, 's')} of overhead."
        elif slow > 0:
            text += f" The largest loss is inside the ops, which run {Quantity(slow, 's')} longer than they must."
    return text


def _without_peaks(analysis: Analysis) -> str:
    missing = [name for name in analysis.unknown_peaks if "matrix" in name]
    if not missing:
        return ""
    return f" Arithmetic is not bounded: {analysis.device.name} has no known {missing[0]}; try another --dtype."


def data_of(analysis: Analysis) -> dict[str, Any]:
    """The machine-readable whole, plain lists and dicts in SI units."""
    totals, coverage = analysis.totals, analysis.coverage
    return {
        "target": analysis.target,
        "device": _device_data(analysis.device),
        "environment": dict(analysis.session.environment),
        "totals": {
            "calls": totals.calls,
            "matrix_flops": totals.matrix_flops,
            "vector_flops": totals.vector_flops,
            "bytes_moved": totals.bytes_moved,
            "bytes_read": totals.bytes_read,
            "bytes_written": totals.bytes_written,
            "bytes_sent": totals.bytes_sent,
            "op_bound_s": totals.op_bound_s,
            "fused_bound_s": analysis.program.fused_bound_s,
            "program_bound_s": analysis.program.program_bound_s,
            "measured_s": totals.measured_s,
            "ops_measured_s": totals.ops_measured_s,
            **row_data(totals.predicted),
        },
        "prediction": prediction_data(analysis),
        "coverage": {
            "calls": coverage.calls,
            "bytes": coverage.bytes,
            "uncosted": [
                {"name": op.name, "reason": op.reason, "calls": op.calls, "bytes": op.bytes} for op in coverage.uncosted
            ],
            "upper_calls": coverage.upper,
        },
        "waterfall": [
            {"name": gap.name, "seconds": gap.seconds, "until_s": gap.until_s, "remedy": gap.remedy}
            for gap in analysis.waterfall
        ],
        "memory": memory_data(analysis.memory, analysis.device.dram_capacity_bytes),
        "communication": communication_data(analysis.communication),
        "by_phase": [group_data(group) for group in analysis.by("phase")],
        "by_module": [group_data(group) for group in analysis.by("module")],
        "by_layer": [group_data(group) for group in analysis.by("layer")],
        "by_op": [group_data(group) for group in analysis.by("op")],
        "ops": [_operation_data(operation) for operation in analysis.operations],
        "contradictions": [
            {
                "name": found.signature.name,
                "shapes": [list(shape) for shape in found.signature.input_shapes],
                "calls": found.calls,
                "bound_s": found.bound_s,
                "measured_s": found.measured_s,
            }
            for found in analysis.contradictions
        ],
        "wall_samples_s": (
            [float(s) for s in analysis.session.measurement.wall_samples_s] if analysis.session.measurement else []
        ),
        "conclusion": conclusion(analysis),
    }


def _facts(analysis: Analysis) -> Iterable[tuple[str, Cell]]:
    totals, coverage, device = analysis.totals, analysis.coverage, analysis.device
    yield "device", f"{device.name} ({_source(device)})"
    yield "roofs", _roofs(analysis)
    if device.calibrated is not None:
        yield "roofs from", device.roofs_used
    yield "operations", f"{totals.calls:,} calls of {len(analysis.operations):,} distinct signatures"
    yield "matrix FLOPs", Quantity(totals.matrix_flops, "FLOP")
    yield "vector FLOPs", Quantity(totals.vector_flops, "FLOP")
    yield "bytes moved", f"{Quantity(totals.bytes_read, 'B')} read, {Quantity(totals.bytes_written, 'B')} written"
    if totals.bytes_sent:
        yield "bytes sent", Quantity(totals.bytes_sent, "B")
    yield "coverage", f"{percent(coverage.calls)} of calls, {percent(coverage.bytes)} of bytes"
    yield "memory", memory_fact(analysis.memory)
    yield "op bound", Quantity(totals.op_bound_s, "s")
    yield from predicted_facts(analysis)
    measurement = analysis.session.measurement
    if measurement is None:
        yield "measured", "not measured"
        return
    walls = measurement.wall_samples_s
    if not len(walls):
        yield "measured", "ops only, not whole steps"
    else:
        span = f"{Quantity(float(walls.min()), 's')} to {Quantity(float(walls.max()), 's')}"
        several = f" (median of {len(walls)}, {span})" if len(walls) > 1 else ""
        yield "measured step", f"{Quantity(totals.measured_s or 0.0, 's')}{several}"
    exposure = exposure_text(analysis.communication)
    if exposure:
        yield "communication", exposure
    if totals.ops_measured_s is not None:
        yield "measured ops", f"{Quantity(totals.ops_measured_s, 's')} in sum ({measurement.clock})"
    if totals.measured_s:
        yield "efficiency", f"{percent(totals.op_bound_s / totals.measured_s)} (op bound / measured step)"


def _tables(analysis: Analysis, top: int) -> Iterable[Table]:
    yield _waterfall_table(analysis)
    yield _group_table("By phase", "phase", analysis.by("phase"), analysis, top=max(top, 20))
    yield _group_table("By layer type", "layer", analysis.by("layer"), analysis, top=top)
    yield _group_table("By op", "op", analysis.by("op"), analysis, top=top)
    yield _operation_table(analysis, top)
    if analysis.communication.collectives:
        yield collectives_table(analysis.communication, top)
    yield from memory_tables(analysis.memory, top)
    uncosted = analysis.coverage.uncosted
    if uncosted:
        yield Table(
            title="Not costed",
            columns=("op", "calls", "bytes of its tensors", "why"),
            rows=tuple((plain_name(op.name), op.calls, Quantity(op.bytes, "B"), op.reason) for op in uncosted[:top]),
            left_out=max(0, len(uncosted) - top),
            note="These are missing from every total above. Give them a formula with @rooflight.formula.",
        )
    contradictions = analysis.contradictions
    if contradictions:
        yield Table(
            title="Contradictions: measured faster than the bound",
            columns=("op", "shapes", "calls", "bound", "fastest median"),
            rows=tuple(
                (
                    plain_name(found.signature.name),
                    shapes_text(found.signature),
                    found.calls,
                    Quantity(found.bound_s, "s"),
                    Quantity(found.measured_s, "s"),
                )
                for found in contradictions[:_SHOWN_CONTRADICTIONS]
            ),
            left_out=max(0, len(contradictions) - _SHOWN_CONTRADICTIONS),
            note="A cost, a roof or a clock is wrong: calibrate again on an idle machine, then report it.",
        )


def _waterfall_table(analysis: Analysis) -> Table:
    gaps = analysis.waterfall
    whole = gaps[-1].until_s
    rows = [
        (
            gap.name,
            Quantity(gap.seconds, "s"),
            Quantity(gap.until_s, "s"),
            Quantity(gap.seconds / whole, "%") if whole else None,
            gap.remedy,
        )
        for gap in gaps
    ]
    return Table(
        title="Waterfall", columns=("from light to clock", "time", "so far", "share", "remedy"), rows=tuple(rows)
    )


def _group_table(title: str, column: str, groups: tuple[Group, ...], analysis: Analysis, *, top: int) -> Table:
    times = _time_columns(analysis)
    rows: list[tuple[Cell, ...]] = []
    for group in groups[:top]:
        name = plain_name(group.name) if column == "op" else group.name
        flops = Quantity(group.matrix_flops, "FLOP"), Quantity(group.vector_flops, "FLOP")
        row: list[Cell] = [name, group.calls, *flops]
        total = analysis.totals.op_bound_s
        share = Quantity(group.bound_s / total, "%") if total else None
        row += [Quantity(group.bytes_moved, "B"), Quantity(group.bound_s, "s"), share, group.limiter]
        rows.append((*row, *_time_cells(group, times)))
    return Table(
        title=title,
        columns=(column, "calls", "matrix", "vector", "bytes", "bound", "share", "limiter", *times),
        rows=tuple(rows),
        optional=("vector", "calls", "matrix", "bytes"),
        left_out=max(0, len(groups) - top),
        note=columns_explained(analysis) if column == "phase" else "",
    )


def _time_columns(analysis: Analysis) -> tuple[str, ...]:
    measured, predicts = analysis.totals.ops_measured_s is not None, analysis.predicts
    if measured:
        return ("measured", "efficiency", "predicted", "error") if predicts else ("measured", "efficiency")
    return ("predicted",) if predicts else ()


def _time_cells(row: Group | Operation, columns: tuple[str, ...]) -> list[Cell]:
    predicted = row.predicted
    cells: dict[str, Cell] = {
        "measured": _seconds(row.measured_s),
        "efficiency": _share(row.efficiency),
        "predicted": _seconds(predicted.time_s if predicted else None),
        "error": _share(predicted.error if predicted else None),
    }
    return [cells[column] for column in columns]


def _operation_table(analysis: Analysis, top: int) -> Table:
    predicts, times = analysis.predicts, _time_columns(analysis)
    rows: list[tuple[Cell, ...]] = []
    for operation in analysis.operations[:top]:
        limiter = operation.bound.limiter.value if operation.bound else "not costed"
        if operation.bound and operation.bound.cache_resident:
            limiter += " (fits cache)"
        row: list[Cell] = [plain_name(operation.signature.name), shapes_text(operation.signature)]
        row += [_modules_text(operation.modules), operation.calls, Quantity(operation.bound_s, "s")]
        row += [*_time_cells(operation, times), limiter]
        rows.append((*row, source_text(operation.estimate)) if predicts else tuple(row))
    order = "measured time" if "measured" in times else "predicted time" if predicts else "bound"
    return Table(
        title=f"Top operations by {order}",
        columns=("op", "shapes", "where", "calls", "bound", *times, "limiter", *(("source",) if predicts else ())),
        rows=tuple(rows),
        optional=("calls", "where", "shapes"),
        left_out=max(0, len(analysis.operations) - top),
    )


def _notes(analysis: Analysis) -> Iterable[str]:
    coverage, device = analysis.coverage, analysis.device
    if coverage.uncosted:
        calls = sum(op.calls for op in coverage.uncosted)
        yield f"{calls:,} calls have no cost and are missing from the totals: the bound is lower than the truth."
    if coverage.upper:
        yield (
            f"{coverage.upper:,} calls are costed under assumptions about their data: masks hide nothing, routing is "
            "balanced, sequences are as long as the longest."
        )
    for name, calls in analysis.unknown_peaks.items():
        yield f"{device.name} has no known {name}: {calls:,} calls are bounded without it."
    peak, capacity = analysis.memory.peak_bytes, device.dram_capacity_bytes
    if capacity is not None and peak > capacity:
        over, times = Quantity(peak - capacity, "B"), peak / capacity
        yield (
            f"The step does not fit: it needs at least {Quantity(peak, 'B')}, {device.name} has "
            f"{Quantity(capacity, 'B')}: {over} too much ({times:.1f} devices' worth). The bound is for one device "
            "as if it did fit."
        )
    resident = sum(op.calls for op in analysis.operations if op.bound and op.bound.cache_resident)
    if resident:
        yield (
            f"{resident:,} calls fit a cache of unknown bandwidth: they may run faster than main memory's roof "
            "when their data are still there."
        )
    if analysis.float32_matrix != "float32":
        yield f"float32 matrix products are bounded at the {analysis.float32_matrix} peak, as the run's settings allow."
    headroom = device.matrix_clock_headroom
    if headroom is not None and headroom > 1:
        yield (
            f"{device.name}'s matrix peak is quoted below its highest clock: a kernel may reach "
            f"{percent(headroom - 1)} more than the bound allows."
        )
    yield from predicted_notes(analysis)
    measurement = analysis.session.measurement
    if measurement is not None and not len(measurement.op_samples_s):
        yield f"No times for single ops ({measurement.clock}; a compiled model is recorded as it runs uncompiled)."
    elif measurement is not None:
        walls = measurement.wall_samples_s
        if len(walls) and (analysis.busy_s or 0.0) > (analysis.totals.measured_s or 0.0):
            yield "The ops, timed one by one, took longer than whole steps: their times are upper figures."
        if len(walls) and walls.max() > _SCATTER * walls.min():
            yield "Steps differ widely in time: other programs may have been running, measure again when it is quiet."
        untimed = sum(op.calls - op.timed_calls for op in analysis.operations if op.bound_s)
        if untimed:
            yield (
                f"{untimed:,} calls could not be timed (most often a number that the program reads back): their "
                "efficiency is unknown."
            )


def _most_of(limiter: Limiter, analysis: Analysis) -> str:
    """The op that spends most of the bound on this limiter."""
    seconds: dict[str, float] = {}
    for operation in analysis.operations:
        if operation.bound and operation.bound.limiter is limiter:
            name = operation.signature.name
            seconds[name] = seconds.get(name, 0.0) + operation.bound_s
    return plain_name(max(seconds, key=lambda name: seconds[name]))


def _limiter_shares(operations: Iterable[Operation]) -> dict[Limiter, float]:
    seconds: dict[Limiter, float] = {}
    for operation in operations:
        if operation.bound and operation.bound_s:
            limiter = operation.bound.limiter
            seconds[limiter] = seconds.get(limiter, 0.0) + operation.bound_s
    total = sum(seconds.values())
    return {limiter: value / total for limiter, value in seconds.items()}


def shapes_text(op: OpSignature) -> str:
    """Input shapes as ``4x6 6x5``, long lists cut."""
    shapes = ["x".join(map(str, shape)) or "scalar" for shape in op.input_shapes]
    more = f" +{len(shapes) - 3}" if len(shapes) > 3 else ""
    return " ".join(shapes[:3]) + more


def _modules_text(modules: tuple[str, ...]) -> str:
    if len(modules) == 1:
        return modules[0] or "–"
    return f"{len(modules)} modules"


def _times(factor: float) -> str:
    return f"{factor:.1f} times" if factor < 100 else f"{factor:,.0f} times"


def _seconds(value: float | None) -> Quantity | None:
    return None if value is None else Quantity(value, "s")


def _share(value: float | None) -> Quantity | None:
    return None if value is None else Quantity(value, "%")


def _source(device: DeviceSpec) -> str:
    kinds = [name for name, roofs in (("datasheet", device.datasheet), ("calibrated", device.calibrated)) if roofs]
    return " and ".join(kinds)


def _roofs(analysis: Analysis) -> str:
    device = analysis.device
    used = {
        operation.cost.matrix_dtype
        for operation in analysis.operations
        if not isinstance(operation.cost, Uncosted) and operation.cost.matrix_flops and operation.cost.matrix_dtype
    }
    names = {analysis.float32_matrix if dtype == "float32" else dtype for dtype in used}
    parts = []
    for name in sorted(names):
        peak = device.matrix_peak(name)
        parts.append(f"{name} matrix {Quantity(peak, 'FLOP/s') if peak else 'unknown'}")
    vector = device.vector_peak("float32")
    parts.append(f"vector {Quantity(vector, 'FLOP/s') if vector else 'unknown'}")
    bandwidth = device.dram_bytes_per_s
    parts.append(f"memory {Quantity(bandwidth, 'B/s') if bandwidth else 'unknown'}")
    return ", ".join(parts)


def _device_data(device: DeviceSpec) -> dict[str, Any]:
    return {
        "name": device.name,
        "kind": device.kind,
        "matrix_flops_per_s": _peaks(device, "matrix_flops_per_s"),
        "vector_flops_per_s": _peaks(device, "vector_flops_per_s"),
        "memory": [
            {"name": level.name, "capacity_bytes": level.capacity_bytes, "bytes_per_s": level.bytes_per_s}
            for level in device.memory
        ],
        "link_bytes_per_s": device.link_bytes_per_s,
        "roofs_used": device.roofs_used,
        "sources": [roofs.source for roofs in (device.datasheet, device.calibrated) if roofs],
    }


def _peaks(device: DeviceSpec, name: str) -> dict[str, float]:
    peaks: dict[str, float] = {}
    for roofs in (device.datasheet, device.calibrated):
        for precision, rate in (getattr(roofs, name) if roofs else {}).items():
            peaks[precision] = max(rate, peaks.get(precision, 0.0))
    return peaks


def group_data(group: Group) -> dict[str, Any]:
    """A roll-up as plain values in SI units."""
    return {
        "name": group.name,
        "calls": group.calls,
        "matrix_flops": group.matrix_flops,
        "vector_flops": group.vector_flops,
        "bytes_moved": group.bytes_moved,
        "bytes_sent": group.bytes_sent,
        "op_bound_s": group.bound_s,
        "limiter": group.limiter,
        "measured_s": group.measured_s,
        "efficiency": group.efficiency,
        **row_data(group.predicted),
    }


def _operation_data(operation: Operation) -> dict[str, Any]:
    cost = operation.cost
    known = None if isinstance(cost, Uncosted) else cost
    return {
        "name": operation.signature.name,
        "shapes": [list(shape) for shape in operation.signature.input_shapes],
        "dtypes": [tensor.dtype for tensor in operation.signature.inputs],
        "modules": list(operation.modules),
        "calls": operation.calls,
        "costed": known is not None,
        "reason": cost.reason if isinstance(cost, Uncosted) else None,
        "matrix_flops": known.matrix_flops * operation.calls if known else None,
        "vector_flops": known.vector_flops * operation.calls if known else None,
        "bytes_moved": known.bytes_moved * operation.calls if known else None,
        "bytes_sent": known.bytes_sent * operation.calls if known else None,
        "assumed": known.upper if known else None,
        "op_bound_s": operation.bound_s if operation.bound else None,
        "limiter": operation.bound.limiter.value if operation.bound else None,
        "measured_s": operation.measured_s,
        "efficiency": operation.efficiency,
        **row_data(operation.predicted),
        "prediction_source": operation.estimate.source.value if operation.estimate else None,
        "extrapolated": operation.estimate.extrapolated if operation.estimate else None,
    }
