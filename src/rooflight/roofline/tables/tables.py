"""The tables and the pictures of an analysis."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Final

from rooflight.costs.cost import Uncosted
from rooflight.records.account import CAUSES, WORDS
from rooflight.records.estimate import Estimate, Source
from rooflight.records.quantity import Quantity, count_of
from rooflight.records.report import Axis, Cell, Line, Mark, Series, Table, share, table
from rooflight.roofline.account.account import Account
from rooflight.roofline.account.accounted import Accounted
from rooflight.roofline.decode_formats import decode_formats, formats_table
from rooflight.roofline.groups import Group, Operation, plain_name
from rooflight.roofline.memory.texts import memory_series, memory_tables
from rooflight.roofline.network import collectives_table
from rooflight.roofline.tables.run import sizes_table
from rooflight.roofline.tables.timeline import timeline_tables, unattributed_work

AS_A_GRAPH: Final = "as if replayed from a graph"
_SHOWN_CONTRADICTIONS: Final = 5
_FEW_PHASES: Final = 20
_MOST_POINTS: Final = 100
_MARGIN: Final = 4  # factor by which roofs reach beyond the points and ridges

_TimeColumn = tuple[str, str, Callable[[Group | Operation], Cell]]


def analysis_tables(analysis: Accounted, top: int) -> Iterable[Table]:
    """All tables for which the analysis has rows; ``top`` is how many rows of long ones are shown."""
    timeline, calls = analysis.timeline, analysis.totals.calls
    bounded = bool(analysis.totals.op_bound_s)
    if analysis.account.wall_s:
        yield account_table(analysis.account)
        yield from sizes_table(analysis.session.run)
    if bounded:
        yield from formats_table(decode_formats(analysis))
    if timeline is not None:
        yield from timeline_tables(timeline, analysis.measured_on, unattributed_work(timeline, analysis.costs), top)
    if not calls:  # the conclusion says why
        if analysis.coverage.uncosted:
            yield _uncosted_table(analysis, top)
        return
    yield _group_table("By phase", "phase", analysis, max(top, _FEW_PHASES), _times_explained(analysis))
    yield _group_table("By layer type", "layer", analysis, top)
    yield _group_table("By op", "op", analysis, top)
    yield _operation_table(analysis, top)
    if analysis.communication.collectives:
        yield collectives_table(analysis.communication, top)
    yield from memory_tables(analysis.memory, top)
    if analysis.coverage.uncosted:
        yield _uncosted_table(analysis, top)
    if analysis.contradictions:
        yield _contradictions_table(analysis)


def account_table(account: Account) -> Table:
    """Where the time of an iteration goes: a row for each cause and regime."""
    return table(
        "account",
        "Where the time goes",
        account.rows,
        ("cause", "", lambda row: WORDS[row.cause]),
        ("regime", "", lambda row: row.regime.value),
        ("time", "s", lambda row: row.seconds),
        ("share", "%", lambda row: row.share),
        ("between", "", lambda row: f"{Quantity(row.low_s, 's')} to {Quantity(row.high_s, 's')}"),
        ("seen in", "", lambda row: None if row.seen[0] == row.seen[1] else f"{row.seen[0]} of {row.seen[1]}"),
        ("mostly in", "", lambda row: str(row.where[0]) if row.where else None),
        optional=("between", "seen in", "mostly in"),
        note=f"Of {_iterations(account)} ({account.source}); the rows sum to it.",
    )


def _iterations(account: Account) -> str:
    if account.iterations == 1:
        return f"a step of {Quantity(account.wall_s, 's')}"
    return (
        f"the mean of {account.iterations} iterations, {Quantity(account.wall_s, 's')}: median "
        f"{Quantity(account.median_s, 's')}, least {Quantity(account.least_s, 's')}, slowest tenth "
        f"{Quantity(account.slow_s, 's')}"
    )


def _group_table(title: str, key: str, analysis: Accounted, top: int, note: str = "") -> Table:
    groups = analysis.by(key)
    total_s = sum(group.bound_s for group in groups)
    apart = "Each op is bounded as if alone in the caches; the step is not, so that its bound is above the rows' sum."
    bounds: tuple[_TimeColumn, ...] = (
        ("op bound", "s", lambda group: group.bound_s),
        ("share", "%", lambda group: share(group.bound_s, total_s)),
        ("limiter", "", lambda group: group.limiter),
    )
    return table(
        f"by_{key}",
        title,
        groups,
        (key, "", lambda group: plain_name(group.name) if key == "op" else group.name),
        ("calls", "", lambda group: group.calls),
        ("matrix", "FLOP", lambda group: group.matrix_flops),
        ("vector", "FLOP", lambda group: group.vector_flops),
        ("bytes", "B", lambda group: group.bytes_moved),
        ("intensity", "FLOP/B", lambda group: group.arithmetic_intensity),
        *(bounds if total_s else ()),
        *_time_columns(analysis),
        top=top,
        optional=("intensity", "vector", "calls", "matrix", "bytes"),
        note=" ".join(filter(None, (note, apart if analysis.held_by_caches else ""))),
    )


def _operation_table(analysis: Accounted, top: int) -> Table:
    times = _time_columns(analysis)
    measured = any(name == "measured" for name, _, _ in times)
    order = "measured time" if measured else "predicted time" if analysis.predicts else "op bound"
    bound = (("op bound", "s", lambda op: op.bound_s),)
    limiter = (("limiter", "", lambda op: op.limiter or "not costed"),)
    source = (("source", "", lambda op: _source_text(op.estimate)),) if analysis.predicts else ()
    return table(
        "operations",
        f"Top operations by {order}",
        analysis.operations,
        ("op", "", lambda op: plain_name(op.name)),
        ("shapes", "", lambda op: shapes_text(op.shapes)),
        ("where", "", lambda op: _modules_text(op.modules)),
        ("calls", "", lambda op: op.calls),
        ("matrix", "FLOP", lambda op: op.matrix_flops),
        ("vector", "FLOP", lambda op: op.vector_flops),
        ("bytes", "B", lambda op: op.bytes_moved),
        ("intensity", "FLOP/B", lambda op: op.arithmetic_intensity),
        *(bound if analysis.totals.op_bound_s else ()),
        *times,
        *(limiter if analysis.totals.op_bound_s else ()),
        *source,
        top=top,
        optional=("vector", "matrix", "bytes", "intensity", "calls", "where", "shapes"),
        note=_ridges(analysis),
    )


def _ridges(analysis: Accounted) -> str:
    bandwidth = analysis.device.dram_bytes_per_s
    ridges = [f"{name} {Quantity(peak / bandwidth, 'FLOP/B')}" for name, peak in _peaks(analysis).items() if bandwidth]
    return f"Ridge points: {', '.join(ridges)}." if ridges else ""


def _time_columns(analysis: Accounted) -> tuple[_TimeColumn, ...]:
    measured: tuple[_TimeColumn, ...] = (
        ("measured", "s", lambda row: row.measured_s),
        *((("efficiency", "%", lambda row: row.efficiency),) if analysis.totals.op_bound_s else ()),
    )
    there: _TimeColumn = ("measured there", "s", lambda row: row.measured_there_s)
    predicted: _TimeColumn = ("predicted", "s", lambda row: row.predicted_s)
    error: _TimeColumn = ("error", "%", lambda row: row.prediction_error)
    if analysis.there is not None and analysis.there.totals.ops_measured_s is not None:
        return (there, predicted) if analysis.predicts else (there,)
    if analysis.totals.ops_measured_s is not None:
        return (*measured, predicted, error) if analysis.predicts else measured
    return (predicted,) if analysis.predicts else ()


def _times_explained(analysis: Accounted) -> str:
    if analysis.predicts:
        text = f"Predicted: the ops one after the other on the device, {AS_A_GRAPH}."
        if analysis.totals.ops_measured_s is not None:
            text += " Error: predicted / measured − 1, of the calls that have both."
        return text
    if analysis.there is None or analysis.there.totals.ops_measured_s is None:
        return ""
    return f"Measured there: on {analysis.measured_on}. The bounds are those of {analysis.device.name}."


def _uncosted_table(analysis: Accounted, top: int) -> Table:
    return table(
        "not_costed",
        "Not costed",
        analysis.coverage.uncosted,
        ("op", "", lambda op: plain_name(op.name)),
        ("modules", "", lambda op: _first_modules(op.modules)),
        ("calls", "", lambda op: op.calls),
        ("bytes of its tensors", "B", lambda op: op.bytes),
        ("why", "", lambda op: op.reason),
        wraps=("why",),
        top=top,
        note="These are missing from every total above. Give ops a formula with @rooflight.formula, modules with "
        "@rooflight.module_formula.",
    )


def _contradictions_table(analysis: Accounted) -> Table:
    return table(
        "contradictions",
        "Contradictions: measured faster than the bound",
        analysis.contradictions,
        ("op", "", lambda found: plain_name(found.name)),
        ("shapes", "", lambda found: shapes_text(found.shapes)),
        ("calls", "", lambda found: found.calls),
        ("op bound", "s", lambda found: found.bound_s),
        ("fastest median", "s", lambda found: found.measured_s),
        top=_SHOWN_CONTRADICTIONS,
        note="A cost, a roof or a clock is wrong: calibrate again on an idle machine, then report it.",
    )


def shapes_text(shapes: tuple[tuple[int, ...], ...]) -> str:
    """Shapes of inputs as ``4x6 6x5``, long lists cut."""
    texts = ["x".join(map(str, shape)) or "scalar" for shape in shapes]
    more = f" +{len(texts) - 3}" if len(texts) > 3 else ""
    return " ".join(texts[:3]) + more


def _source_text(estimate: Estimate | None) -> str | None:
    if estimate is None:
        return None
    extrapolated = estimate.extrapolated and estimate.source is not Source.TYPICAL
    return estimate.source.value + (", extrapolated" if extrapolated else "")


def _first_modules(modules: tuple[str, ...]) -> str | None:
    named = [module for module in modules if module]
    rest = f" and {len(named) - 2} more" if len(named) > 3 else ""
    return ", ".join(named[: 2 if rest else 3]) + rest or None


def _modules_text(modules: tuple[str, ...]) -> str | None:
    return (modules[0] or None) if len(modules) == 1 else count_of(len(modules), "module")


def analysis_series(analysis: Accounted) -> Iterable[Series]:
    """The pictures that the analysis has figures for: its roofline, its memory over the step, its account."""
    yield from _roofline(analysis)
    yield from memory_series(analysis.memory)
    if analysis.account.wall_s:
        yield _account_series(analysis.account)


def _roofline(analysis: Accounted) -> Iterable[Series]:
    measured = analysis.totals.ops_measured_s is not None
    points = [point for op in analysis.operations[:_MOST_POINTS] if (point := _point(op, measured=measured))]
    levels = {level.name: level.bytes_per_s or level.peak_bytes_per_s for level in analysis.device.memory}
    bandwidths = {name: speed for name, speed in levels.items() if speed}
    peaks = _peaks(analysis)
    if not points or not bandwidths or not peaks:
        return
    x, y, labels = zip(*points, strict=True)
    intensities = [*(peak / bandwidth for peak in peaks.values() for bandwidth in bandwidths.values()), *x]
    lowest, highest = min(intensities) / _MARGIN, max(intensities) * _MARGIN
    highest_peak, widest = max(peaks.values()), max(bandwidths.values())
    slopes = [
        Line(
            name=f"{name} {Quantity(bandwidth, 'B/s')}",
            x=(lowest, highest_peak / bandwidth),
            y=(bandwidth * lowest, bandwidth * (highest_peak / bandwidth)),
        )
        for name, bandwidth in bandwidths.items()
    ]
    flats = [
        Line(name=f"{name} {Quantity(peak, 'FLOP/s')}", x=(peak / widest, highest), y=(peak, peak))
        for name, peak in peaks.items()
    ]
    ops = "ops, as measured" if measured else "ops, at their bound"
    yield Series(
        id="roofline",
        title="Roofline",
        x=Axis(name="arithmetic intensity", unit="FLOP/B", logarithmic=True),
        y=Axis(name="speed", unit="FLOP/s", logarithmic=True),
        lines=(*slopes, *flats, Line(name=ops, x=x, y=y, mark=Mark.POINTS, labels=labels)),
        note=(
            f"The first {_MOST_POINTS} operations that compute. Of an op with matrix products, only their FLOPs count. "
            "An op may lie above the roof of main memory where its data fit a cache."
        ),
    )


def _point(operation: Operation, *, measured: bool) -> tuple[float, float, str] | None:
    """FLOPs per byte, FLOP/s and the name of an op; None for one that computes or moves nothing, or has no time."""
    cost = operation.cost
    if isinstance(cost, Uncosted) or not cost.bytes_moved:
        return None
    flops = cost.matrix_flops or cost.vector_flops
    calls = operation.timed_calls if measured else operation.calls
    seconds = operation.measured_s if measured else operation.bound_s
    if not flops or not seconds:
        return None
    label = f"{plain_name(operation.name)} {shapes_text(operation.shapes)}, {count_of(operation.calls, 'call')}"
    return flops / cost.bytes_moved, flops * calls / seconds, label


def _peaks(analysis: Accounted) -> dict[str, float]:
    device = analysis.device
    peaks = {f"{name} matrix": device.matrix_peak(name) for name in analysis.matrix_formats}
    if analysis.totals.vector_flops:
        peaks["vector"] = device.vector_peak("float32")
    return {name: peak for name, peak in peaks.items() if peak}


def _account_series(account: Account) -> Series:
    rows = sorted(account.rows, key=lambda row: CAUSES.index(row.cause))
    ends = tuple(accumulate(row.seconds for row in rows))
    bars = Line(
        name="time",
        x=tuple(WORDS[row.cause] for row in rows),
        y=tuple(row.seconds for row in rows),
        mark=Mark.BARS,
        base=(0.0, *ends[:-1]),
    )
    return Series(
        id="account", title="Where the time goes", x=Axis(name=""), y=Axis(name="time", unit="s"), lines=(bars,)
    )
