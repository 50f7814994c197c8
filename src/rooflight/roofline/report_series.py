"""The pictures of an analysis: its roofline, its waterfall, its memory over the step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rooflight.costs.cost import Uncosted
from rooflight.records.quantity import Quantity, count_of
from rooflight.records.series import Axis, Line, Mark, Series
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.memory_report import memory_series
from rooflight.roofline.op_names import plain_name
from rooflight.roofline.report_tables import shapes_text
from rooflight.roofline.sums import Operation

_MOST_POINTS: Final = 100
_MARGIN: Final = 4  # factor by which roofs reach beyond the points and ridges


@dataclass(frozen=True, slots=True)
class _Point:
    """An op on the roofline: FLOPs per byte, FLOP/s, and what it is."""

    intensity: float
    flops_per_s: float
    label: str


def analysis_series(analysis: Analysis) -> Iterable[Series]:
    """The pictures that the analysis has figures for."""
    yield from _roofline(analysis)
    yield from memory_series(analysis.memory)
    if analysis.totals.calls:
        yield _waterfall(analysis)


def _roofline(analysis: Analysis) -> Iterable[Series]:
    """Ops by arithmetic intensity under the device's roofs; nothing where no op computes or no roof is known."""
    measured = analysis.totals.ops_measured_s is not None
    points = [point for op in analysis.operations[:_MOST_POINTS] if (point := _point(op, measured=measured))]
    levels = {level.name: level.bytes_per_s or level.peak_bytes_per_s for level in analysis.device.memory}
    bandwidths = {name: speed for name, speed in levels.items() if speed}
    peaks = _peaks(analysis)
    if not points or not bandwidths or not peaks:
        return
    ridges = [peak / bandwidth for peak in peaks.values() for bandwidth in bandwidths.values()]
    intensities = [*ridges, *(point.intensity for point in points)]
    lowest, highest = min(intensities) / _MARGIN, max(intensities) * _MARGIN
    highest_peak, widest = max(peaks.values()), max(bandwidths.values())
    slopes = [
        _roof(f"{name} {Quantity(bandwidth, 'B/s')}", (lowest, highest_peak / bandwidth), slope=bandwidth)
        for name, bandwidth in bandwidths.items()
    ]
    flats = [
        _roof(f"{name} {Quantity(peak, 'FLOP/s')}", (peak / widest, highest), level=peak)
        for name, peak in peaks.items()
    ]
    ops = Line(
        name="ops, as measured" if measured else "ops, at their bound",
        x=tuple(point.intensity for point in points),
        y=tuple(point.flops_per_s for point in points),
        mark=Mark.POINTS,
        labels=tuple(point.label for point in points),
    )
    yield Series(
        id="roofline",
        title="Roofline",
        x=Axis(name="arithmetic intensity", unit="FLOP/B", logarithmic=True),
        y=Axis(name="speed", unit="FLOP/s", logarithmic=True),
        lines=(*slopes, *flats, ops),
        note=(
            f"The first {_MOST_POINTS} operations that compute. Of an op with matrix products, only their FLOPs count. "
            "An op may lie above the roof of main memory where its data fit a cache."
        ),
    )


def _point(operation: Operation, *, measured: bool) -> _Point | None:
    """Where an op lies; None for one that computes nothing, moves nothing, or has no time."""
    cost = operation.cost
    if isinstance(cost, Uncosted) or not cost.bytes_moved:
        return None
    flops = cost.matrix_flops or cost.vector_flops
    calls = operation.timed_calls if measured else operation.calls
    seconds = operation.measured_s if measured else operation.bound_s
    if not flops or not seconds:
        return None
    shapes, made = shapes_text(operation.signature), count_of(operation.calls, "call")
    label = f"{plain_name(operation.signature.name)} {shapes}, {made}"
    return _Point(flops / cost.bytes_moved, flops * calls / seconds, label)


def _peaks(analysis: Analysis) -> dict[str, float]:
    """The peaks of what the ops compute with."""
    device = analysis.device
    costs = [
        (operation.signature, operation.cost)
        for operation in analysis.operations
        if not isinstance(operation.cost, Uncosted)
    ]
    names = {
        analysis.matrix_precision(op, cost.matrix_dtype)
        for op, cost in costs
        if cost.matrix_flops and cost.matrix_dtype
    }
    peaks = {f"{name} matrix": device.matrix_peak(name) for name in sorted(names)}
    if any(cost.vector_flops for _, cost in costs):
        peaks["vector"] = device.vector_peak("float32")
    return {name: peak for name, peak in peaks.items() if peak}


def _roof(name: str, span: tuple[float, float], *, slope: float = 0.0, level: float = 0.0) -> Line:
    return Line(name=name, x=span, y=(level + slope * span[0], level + slope * span[1]))


def _waterfall(analysis: Analysis) -> Series:
    gaps = analysis.waterfall
    return Series(
        id="waterfall",
        title="Waterfall: from the program bound to the measured step",
        x=Axis(name=""),
        y=Axis(name="time", unit="s"),
        lines=(
            Line(
                name="time",
                x=tuple(gap.name for gap in gaps),
                y=tuple(gap.seconds for gap in gaps),
                mark=Mark.BARS,
                base=tuple(gap.until_s - gap.seconds for gap in gaps),
                labels=tuple(gap.remedy for gap in gaps),
            ),
        ),
    )
