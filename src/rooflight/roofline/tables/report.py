"""An Analysis as a Report: what `rooflight analyze` shows, in every format."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from rooflight.costs.cost import Uncosted
from rooflight.hardware.devices.spec import clock_text
from rooflight.hardware.devices.what_if import without_effect
from rooflight.records.account import IDLE, WORDS
from rooflight.records.dtypes import SHORT_PRECISIONS, precision_of
from rooflight.records.measurement import NO_WORK
from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.records.record import Direction
from rooflight.records.report import Cell, Report
from rooflight.records.session import AS_KERNELS, COMPILED, DECODED
from rooflight.roofline.account.accounted import Accounted
from rooflight.roofline.account.batch import batch_of, matrix_share
from rooflight.roofline.bound import Limiter
from rooflight.roofline.findings import Diagnosis
from rooflight.roofline.groups import plain_name, seconds_by
from rooflight.roofline.host import IN_THE_OPS
from rooflight.roofline.memory.texts import memory_fact
from rooflight.roofline.network import exposure_text
from rooflight.roofline.predicted import Predicted, PredictedWall
from rooflight.roofline.tables.document import analysis_data, predicted_speedup
from rooflight.roofline.tables.findings import answer, findings_facts, findings_table, hot_spots_table
from rooflight.roofline.tables.notes import analysis_notes
from rooflight.roofline.tables.run import of_script, run_facts
from rooflight.roofline.tables.tables import AS_A_GRAPH, analysis_series, analysis_tables
from rooflight.roofline.tables.timeline import launch_facts

_REST: Final = 1e-9  # what is left of a difference that should be 0


def analysis_facts(analysis: Accounted) -> Iterable[tuple[str, Cell]]:
    """What the head of the report shows."""
    totals, coverage, device = analysis.totals, analysis.coverage, analysis.device
    if model_class := analysis.session.environment.get("model_class"):
        yield "model", model_class
    yield from run_facts(analysis.session.run)
    kinds = (("datasheet", device.datasheet), ("calibrated", device.calibrated))
    yield "device", f"{device.name} ({' and '.join(name for name, roofs in kinds if roofs) or 'unknown'})"
    if device.memory:
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
    else:
        timed = "" if coverage.time is None else f"{percent(coverage.time)} of the device's work by time, "
        moved = "unknown bytes" if coverage.bytes is None else f"{percent(coverage.bytes)} of bytes"
        yield "coverage", f"{timed}{percent(coverage.calls)} of calls, {'of ' * (coverage.bytes is None)}{moved}"
    if analysis.without_storages:
        yield "memory", "not known: the ops are without their storages, as in a trace"
    else:
        yield "memory", memory_fact(analysis.memory, compiled=analysis.session.compiled)
    if analysis.session.environment.get(COMPILED) == AS_KERNELS:
        yield "compiled", "in part or whole: the kernels that the compiler wrote are among the ops"
    if analysis.session.compiled:
        fused = Quantity(analysis.program.fused_bound_s, "s")
        yield "fused bound", f"{fused}: the program is compiled in part or whole, and may beat its op bound"
    if totals.op_bound_s:
        yield "op bound", Quantity(totals.op_bound_s, "s")
    yield from _predicted_facts(analysis)
    yield from _measured_facts(analysis)
    yield from _token_facts(analysis)
    yield from _training_facts(analysis)
    if analysis.timeline is not None and analysis.timeline.launches is not None:
        yield from launch_facts(analysis.timeline.launches)


def _token_facts(analysis: Accounted) -> Iterable[tuple[str, Cell]]:
    """TPOT, the time of a decode step that gives each sequence a token, and tokens per second of all of them."""
    tokens = int(analysis.session.environment.get(DECODED, 0))
    totals, wall = analysis.totals, analysis.totals.predicted_wall
    known = {
        "measured": totals.measured_s,
        "predicted": wall.time_s if wall else None,
        f"predicted {AS_A_GRAPH}": totals.predicted.time_s if totals.predicted else None,
        "program bound": analysis.program.program_bound_s,
    }
    if tokens:
        times = (f"{what} {token_time(time_s, tokens)}" for what, time_s in known.items() if time_s)
        yield "time per token", "; ".join(times)


def _training_facts(analysis: Accounted) -> Iterable[tuple[str, Cell]]:
    """Of a step that trains: tokens or samples a second, and the share of the matrix peak that its products reach."""
    account, found = analysis.account, batch_of(analysis.session)
    trains = (analysis.session.columns.direction == Direction.BACKWARD).any()
    if account.source == "bound" or found is None or not account.wall_s or not trains:
        return
    unit, count = found
    text = f"{count:,} {unit} a step, {count / account.wall_s:,.4g} {unit}/s"
    share = matrix_share(analysis, account.wall_s)
    text += "" if share is None else f", MFU {percent(share)}"
    yield "throughput", f"{text} ({account.source})"


def token_time(time_s: float, tokens: int) -> str:
    """``7.38 ms (136 tok/s)``: the time of a decode step, and the tokens per second that it makes."""
    rate = tokens / time_s
    return f"{Quantity(time_s, 's')} ({rate:{',.0f' if rate >= 100 else '.3g'}} tok/s)"


def what_if_facts(analysis: Accounted) -> Iterable[tuple[str, Cell]]:
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


def _predicted_facts(analysis: Accounted) -> Iterable[tuple[str, Cell]]:
    if not analysis.predicts:
        return
    predicted = analysis.totals.predicted
    if predicted is None or not predicted.time_s:
        yield "predicted", "nothing: no op has a cost that takes time"
        return
    wall = analysis.totals.predicted_wall
    how = f"the ops one after the other, {AS_A_GRAPH}{_overlap(wall)}"
    yield "predicted device time", f"{with_interval(predicted)}, {how}"
    if wall is not None and wall.host is not IN_THE_OPS:
        yield "predicted wall time", f"{with_interval(wall)}, {_host_text(wall)}"
    yield "predicted efficiency", f"{percent(predicted.efficiency or 0.0)} (op bound / predicted)"
    parts = {
        "such ops": predicted.time_s - predicted.extrapolated_s - predicted.typical_s,
        "other ops, sizes or devices": predicted.extrapolated_s,
        "no measurement": predicted.typical_s,
    }
    shares = {what: seconds / predicted.time_s for what, seconds in parts.items()}
    learned = (f"{what} ({percent(share)})" for what, share in shares.items() if share > _REST)
    yield "learned from", f"{', '.join(learned)} of the time"
    if predicted.error is not None:
        predicted_s, measured_s = Quantity(predicted.timed_s or 0.0, "s"), Quantity(predicted.measured_s or 0.0, "s")
        yield "prediction error", f"{predicted.error:+.1%} (predicted {predicted_s}, measured {measured_s} in ops)"


def _overlap(wall: PredictedWall | None) -> str:
    """Why the wall time may be less than the sum of the ops: how much of it is collectives; empty where none is."""
    if wall is None or not wall.sends_s:
        return ""
    sends = Quantity(wall.sends_s, "s")
    return f" ({sends} of it collectives, which may run beside other ops and shorten the wall time)"


def _host_text(wall: PredictedWall) -> str:
    if wall.host.replayed:
        return f"one launch of a graph in {Quantity(wall.host_s, 's')}"
    launch = Quantity(wall.host.launch_s, "s")
    return f"launching takes the host {Quantity(wall.host_s, 's')}: {launch} each ({wall.host.source})"


def with_interval(predicted: Predicted | PredictedWall) -> str:
    """A predicted time, and between what it is nine times in ten."""
    low, high = Quantity(predicted.low_s, "s"), Quantity(predicted.high_s, "s")
    return f"{Quantity(predicted.time_s, 's')} (90 %: {low} to {high})"


def _measured_facts(analysis: Accounted) -> Iterable[tuple[str, Cell]]:
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
        median, least, most = (Quantity(float(each), "s") for each in (np.median(walls), walls.min(), walls.max()))
        several = f" (mean of {len(walls)}, {least} to {most}, median {median})" if len(walls) > 1 else ""
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
        name, bound_s = analysis.leading_bound
        share = percent(bound_s / totals.measured_s)
        doubt = ": a contradiction, see the notes" if analysis.beats_light else ""
        yield "efficiency", f"{share} ({name} / measured step){doubt}"


def _there_facts(analysis: Accounted) -> Iterable[tuple[str, Cell]]:
    there = analysis.there
    if there is None:
        return
    if there.totals.measured_s is not None:
        yield "measured there", f"step of {Quantity(there.totals.measured_s, 's')} on {analysis.measured_on}"
    if there.totals.ops_measured_s is not None:
        yield "ops there", f"{Quantity(there.totals.ops_measured_s, 's')} in sum on {analysis.measured_on}"
    if speedup := predicted_speedup(analysis):
        yield "predicted speed-up", f"{speedup:.2f} times as fast here, the ops that have both times"


def _roofs(analysis: Accounted) -> str:
    device = analysis.device
    parts = []
    for name in analysis.matrix_formats:
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


_MUCH_IDLE: Final = 0.1  # of a step: so much idle time is in the conclusion
_MUCH: Final = 0.01  # of the device's work: so much without a bound is said
_NO_WORK_S: Final = 1e-9  # a bound below this is compared with no time
_WHERE: Final = {
    Limiter.COMPUTE: "arithmetic",
    Limiter.MEMORY: "memory bandwidth",
    Limiter.CACHE: "memory bandwidth (a cache may hold these data)",
    Limiter.NETWORK: "the network",
}


def report_of(
    analysis: Accounted, *, top: int = 10, notes: Iterable[str] = (), found: Diagnosis | None = None
) -> Report:
    """The report of an analysis, with what a diagnosis ``found``; ``top`` limits the rows of its long tables. Raises
    ValueError for ``top`` < 1.
    """
    if top < 1:
        raise ValueError(f"--top {top}: at least 1 row")
    verdict = of_script(analysis.session.run, " ".join(filter(None, (answer(found), conclusion(analysis)))))
    return Report(
        title=f"Speed of light: {analysis.target or 'recorded session'} on {analysis.device.name}",
        data=analysis_data(analysis, verdict, found),
        facts=(*findings_facts(found, analysis.account), *analysis_facts(analysis)),
        tables=(
            *((findings_table(found, top),) if found and found.findings else ()),
            *((hot_spots_table(found.hot_spots),) if found and found.hot_spots else ()),
            *analysis_tables(analysis, top),
        ),
        series=tuple(analysis_series(analysis)),
        notes=(*notes, *analysis.session.notes, *analysis_notes(analysis)),
        conclusion=verdict,
    )


def conclusion(analysis: Accounted) -> str:
    """How far from its op bound, and what limits it, in plain words."""
    totals, measurement, run = analysis.totals, analysis.measurement, analysis.session.run
    if run is not None and run.step is None and run.between:
        return ""
    if measurement is not None and measurement.clock == NO_WORK:
        return _LAUNCHES_ALONE
    if not totals.op_bound_s:
        return _without_bound(analysis)
    if analysis.beats_light:
        return (
            f"Contradiction: the step took {Quantity(totals.measured_s or 0.0, 's')}, and this device needs at least "
            f"{Quantity(analysis.program.warm.program_bound_s, 's')} for its work, however it is programmed."
        )
    name, bound_s = analysis.leading_bound
    bound, limit = Quantity(bound_s, "s"), _limit(analysis)
    if totals.measured_s is None:
        other = measurement is not None and not measurement.of_the_session
        how = "one by one" if name == "op bound" else "fused as compiled code may be"
        timed = " The step that was timed is not the recorded one." if other else ""
        return (
            f"These ops, {how}, take at least {bound}: {limit}.{_predicted_sentence(analysis)}{timed}"
            f"{_without_peaks(analysis)}{_there_sentence(analysis)}"
        )
    if bound_s < _NO_WORK_S:
        beside = f"and its ops hardly work: their {name} is below 1 ns"
    else:
        speed = totals.measured_s / bound_s
        times = f"{speed:.1f} times" if speed < 100 else f"{speed:,.0f} times"
        beside = f"{times} the {name} of {bound} (efficiency {percent(1 / speed)})"
    text = (
        f"The step took {Quantity(totals.measured_s, 's')}, {beside}; {limit}.{_unbounded_sentence(analysis)}"
        f"{_without_peaks(analysis)}{_idle_sentence(analysis)}"
    )
    if measurement is not None and measurement.disturbed:
        taken = percent(measurement.others_share or 0.0)
        text = f"Other programs took {taken} of the CPU: measure again on a quiet machine. {text}"
    return text


def _limit(analysis: Accounted) -> str:
    if analysis.held_by_caches:
        return f"it is limited by {_WHERE[analysis.program.limiter]}: no cache holds the data of all of them at once"
    bounded = [(op.bound.limiter, op) for op in analysis.operations if op.bound and op.bound_s]
    shares = seconds_by((limiter, op.bound_s) for limiter, op in bounded)
    limiter, seconds = next(iter(shares.items()))
    most = next(iter(seconds_by((op.name, op.bound_s) for of, op in bounded if of is limiter)))
    share = percent(seconds / sum(shares.values()))
    return f"{share} of the op bound is limited by {_WHERE[limiter]}, most of it in {plain_name(most)}"


def _idle_sentence(analysis: Accounted) -> str:
    """How much of a step the device that was followed was idle, and mostly why; empty where little."""
    if analysis.timeline is None:
        return ""
    there = analysis.there or analysis
    account = there.account
    waits = {cause: account.seconds(cause) for cause in IDLE}
    idle_s, cause = sum(waits.values()), max(waits, key=lambda each: waits[each])
    if idle_s < _MUCH_IDLE * account.wall_s or not idle_s:
        return ""
    device, why = analysis.measured_on or "The device", WORDS[cause].partition(":")[0]
    longest = f"{percent(waits[cause] / account.wall_s)} ({Quantity(waits[cause], 's')})"
    return f" {device} was idle for {percent(idle_s / account.wall_s)} of a step, {longest} of it: {why}."


_LAUNCHES_ALONE: Final = (
    "The trace has calls that launch a device's work, and none of that work: what it took is not known. Record it with "
    "profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True)."
)
_NO_OPS: Final = (
    "No ops were recorded: the program ran none while the recording was open, or ran them in another thread or "
    "process. A recording sees the ops of the thread that opened it: open it in the thread that works."
)
_NO_KERNELS: Final = (
    "All that ran is code of torch.compile, of which a profile of a CPU has no kernels: profile it uncompiled."
)


def _without_bound(analysis: Accounted) -> str:
    if not analysis.totals.calls and analysis.timeline is not None:
        text = (
            "The trace has the device's work, and no op on the host that launched it: nothing can be bounded. Record "
            "it with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True)."
        )
        return text + _idle_sentence(analysis)
    if not analysis.totals.calls and not analysis.coverage.uncosted:
        return _NO_KERNELS if analysis.session.environment.get(COMPILED) == AS_KERNELS else _NO_OPS
    if not analysis.coverage.calls:
        first = analysis.coverage.uncosted[0]
        why = f"The reason for {plain_name(first.name)}: {first.reason}."
        return f"None of the ops has a cost, so nothing can be bounded. {why}{_idle_sentence(analysis)}"
    if not analysis.device.memory:
        took = f" The step took {Quantity(measured_s, 's')}." if (measured_s := analysis.totals.measured_s) else ""
        idle = _idle_sentence(analysis)
        if analysis.device.kind == "cpu":
            return f"No bounds here: {'; '.join(analysis.device.notes)}.{took}{idle}"
        return f"{analysis.device.name} is unknown, so that nothing is bounded.{took}{idle}"
    return "The recorded ops do no work that a roof of this device bounds."


def _without_peaks(analysis: Accounted) -> str:
    missing = [name for name in analysis.unknown_peaks if "matrix" in name]
    if not missing:
        return ""
    return f" Arithmetic is not bounded: {analysis.device.name} has no known {missing[0]}; try another --dtype."


def _predicted_sentence(analysis: Accounted) -> str:
    predicted, wall = analysis.totals.predicted, analysis.totals.predicted_wall
    if predicted is None or not predicted.time_s:
        return ""
    if wall is None or wall.host is IN_THE_OPS:
        return f" They are predicted to take {with_interval(predicted)}."
    who = "the host, which issues the ops, takes longest" if wall.host_bound else "the device takes longest"
    return (
        f" The step is predicted to take {with_interval(wall)} on the wall clock; {who}. The device alone, "
        f"{AS_A_GRAPH}, is predicted to take {Quantity(predicted.time_s, 's')}{_overlap(wall)}."
    )


def _there_sentence(analysis: Accounted) -> str:
    if analysis.there is None:
        return ""
    measured_s = analysis.there.totals.measured_s
    took = "" if not measured_s else f", where it was measured, the step took {Quantity(measured_s, 's')}."
    return (took and f" On {analysis.measured_on}{took}") + _idle_sentence(analysis)


def _unbounded_sentence(analysis: Accounted) -> str:
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
    return f" {work} has no bound and is left out: the true efficiency is higher."
