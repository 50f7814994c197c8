"""The facts at the head of an analysis's report: the device, the work, the bound, what was predicted and measured."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rooflight.devices.spec import clock_text
from rooflight.devices.what_if import without_effect
from rooflight.records.dtypes import SHORT_PRECISIONS, precision_of
from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.records.report import Cell
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.communication import exposure_text
from rooflight.roofline.document import predicted_speedup
from rooflight.roofline.host import IN_THE_OPS
from rooflight.roofline.memory import memory_fact
from rooflight.roofline.predicted import Predicted
from rooflight.roofline.tables import AS_A_GRAPH
from rooflight.roofline.timeline import launch_facts
from rooflight.roofline.wall import PredictedWall

_REST: Final = 1e-9  # what is left of a difference that should be 0


def analysis_facts(analysis: Analysis) -> Iterable[tuple[str, Cell]]:
    """What the head of the report shows."""
    totals, coverage, device = analysis.totals, analysis.coverage, analysis.device
    if model_class := analysis.session.environment.get("model_class"):
        yield "model", model_class
    kinds = (("datasheet", device.datasheet), ("calibrated", device.calibrated))
    yield "device", f"{device.name} ({' and '.join(name for name, roofs in kinds if roofs)})"
    yield "roofs", _roofs(analysis)
    yield from what_if_facts(analysis)
    if device.calibrated is not None:
        yield "roofs from", device.roofs_used
    yield (
        "operations",
        f"{count_of(totals.calls, 'call')} of {count_of(len(analysis.operations), 'distinct signature')}",
    )
    yield "matrix FLOPs", Quantity(totals.matrix_flops, "FLOP")
    yield "vector FLOPs", Quantity(totals.vector_flops, "FLOP")
    yield "bytes moved", f"{Quantity(totals.bytes_read, 'B')} read, {Quantity(totals.bytes_written, 'B')} written"
    if totals.bytes_sent:
        yield "bytes sent", Quantity(totals.bytes_sent, "B")
    if coverage.calls is None:
        yield "coverage", "no ops were recorded"
    elif coverage.bytes is None:
        yield "coverage", f"{percent(coverage.calls)} of calls, of unknown bytes"
    else:
        yield "coverage", f"{percent(coverage.calls)} of calls, {percent(coverage.bytes)} of bytes"
    if analysis.without_storages:
        yield "memory", "not known: the ops are without their storages, as in a trace"
    else:
        yield "memory", memory_fact(analysis.memory)
    yield "op bound", Quantity(totals.op_bound_s, "s")
    yield from _predicted_facts(analysis)
    yield from _measured_facts(analysis)
    if analysis.timeline is not None and analysis.timeline.launches is not None:
        yield from launch_facts(analysis.timeline.launches)


def what_if_facts(analysis: Analysis) -> Iterable[tuple[str, Cell]]:
    """One line for each what-if roof of the device."""
    supposed = analysis.device.what_if_precision
    if supposed is not None:
        own = [(analysis.float32.matrix_precision(op, dtype), dtype) for op, dtype in analysis.products]
        dtypes = sorted({precision_of(dtype) or dtype for at, dtype in own if analysis.device.computed_as(at) != at})
        if dtypes:
            named = " and ".join(dtypes)
            option = f"--precision {SHORT_PRECISIONS[supposed]}"
            yield (
                "what if",
                f"{named} work bounded as if done in {supposed} ({option}): the program says {named}; its bytes count "
                "as they are stored",
            )
        else:
            yield "what if", without_effect(supposed)
    if analysis.device.what_if_clock_hz is not None:
        clock = clock_text(analysis.device.what_if_clock_hz)
        yield "what if", f"the clock is locked at {clock} (--clock): peaks of arithmetic scale, bandwidths do not"


def _predicted_facts(analysis: Analysis) -> Iterable[tuple[str, Cell]]:
    """The predicted time, its efficiency, what it rests on, and how far it is from what was measured."""
    if not analysis.predicts:
        return
    predicted = analysis.totals.predicted
    if predicted is None or not predicted.time_s:
        yield "predicted", "nothing: no op has a cost that takes time"
        return
    yield "predicted device time", f"{with_interval(predicted)}, the ops one after the other, {AS_A_GRAPH}"
    wall = analysis.totals.predicted_wall
    if wall is not None and wall.host is not IN_THE_OPS:
        yield "predicted wall time", f"{with_interval(wall)}, {_host_text(wall)}"
    yield "predicted efficiency", f"{percent(predicted.efficiency or 0.0)} (op bound / predicted)"
    parts = {
        "measurements of such ops": predicted.time_s - predicted.extrapolated_s - predicted.typical_s,
        "measurements of other ops, sizes or devices": predicted.extrapolated_s,
        "no measurements": predicted.typical_s,
    }
    shares = {what: seconds / predicted.time_s for what, seconds in parts.items()}
    yield (
        "prediction rests",
        ", ".join(f"{percent(share)} on {what}" for what, share in shares.items() if share > _REST),
    )
    if predicted.error is not None:
        predicted_s, measured_s = Quantity(predicted.timed_s or 0.0, "s"), Quantity(predicted.measured_s or 0.0, "s")
        yield "prediction error", f"{predicted.error:+.1%} (predicted {predicted_s}, measured {measured_s} in ops)"


def _host_text(wall: PredictedWall) -> str:
    """Which host was assumed, and how long it needs."""
    if wall.host.replayed:
        return f"one launch of a graph in {Quantity(wall.host_s, 's')}"
    launch = Quantity(wall.host.launch_s, "s")
    return f"a host that takes {launch} per launch ({wall.host.source}), {Quantity(wall.host_s, 's')} in all"


def with_interval(predicted: Predicted | PredictedWall) -> str:
    """A predicted time, and between what it is nine times in ten."""
    low, high = Quantity(predicted.low_s, "s"), Quantity(predicted.high_s, "s")
    return f"{Quantity(predicted.time_s, 's')} (90 %: {low} to {high})"


def _measured_facts(analysis: Analysis) -> Iterable[tuple[str, Cell]]:
    """What the head of the report shows of times."""
    totals, measurement = analysis.totals, analysis.measurement
    if measurement is None:
        if analysis.measured_on:
            yield from _there_facts(analysis)
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


def _there_facts(analysis: Analysis) -> Iterable[tuple[str, Cell]]:
    """What the head of the report shows of times on another device."""
    there = analysis.there
    if there is None:
        return
    if there.totals.measured_s is not None:
        yield "measured there", f"step of {Quantity(there.totals.measured_s, 's')} on {analysis.measured_on}"
    if there.totals.ops_measured_s is not None:
        yield "ops there", f"{Quantity(there.totals.ops_measured_s, 's')} in sum on {analysis.measured_on}"
    if speedup := predicted_speedup(analysis):
        yield "predicted speed-up", f"{speedup:.2f} times as fast here, the ops that have both times"


def matrix_formats(analysis: Analysis) -> list[str]:
    """The formats of which matrix peaks bound the run."""
    return sorted({analysis.matrix_precision(op, dtype) for op, dtype in analysis.products})


def _roofs(analysis: Analysis) -> str:
    device = analysis.device
    parts = []
    for name in matrix_formats(analysis):
        peak = device.matrix_peak(name)
        parts.append(f"{name} matrix {Quantity(peak, 'FLOP/s') if peak else 'unknown'}")
    vector = device.vector_peak("float32")
    parts.append(f"vector {Quantity(vector, 'FLOP/s') if vector else 'unknown'}")
    bandwidth = device.dram_bytes_per_s
    parts.append(f"memory {Quantity(bandwidth, 'B/s') if bandwidth else 'unknown'}")
    for level in device.memory[:-1]:
        if speed := level.bytes_per_s or level.peak_bytes_per_s:
            parts.append(f"{level.name} {'' if level.bytes_per_s else 'at most '}{Quantity(speed, 'B/s')}")
    if device.threads is not None:
        parts.append(f"{device.threads} thread{'s' if device.threads > 1 else ''}")
    return ", ".join(parts)
