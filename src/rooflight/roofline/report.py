"""An Analysis as a Report: what `rooflight analyze` shows, in every format."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rooflight.costs.cost import Uncosted
from rooflight.costs.registry import traits_of
from rooflight.costs.traits import Float32Kind
from rooflight.devices.spec import DeviceSpec, MemoryLevel
from rooflight.records.dtypes import precision_of
from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.records.report import Cell, Report
from rooflight.records.signature import COMPUTED_IN, OpSignature
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.bound import Limiter
from rooflight.roofline.elsewhere_report import there_sentence
from rooflight.roofline.launches_report import launch_facts
from rooflight.roofline.measured_report import measured_facts, measured_notes
from rooflight.roofline.memory_report import memory_fact, memory_shortage
from rooflight.roofline.op_names import plain_name
from rooflight.roofline.predicted_report import predicted_facts, predicted_notes, predicted_sentence
from rooflight.roofline.report_data import analysis_data
from rooflight.roofline.report_series import analysis_series
from rooflight.roofline.report_tables import analysis_tables
from rooflight.roofline.sums import Operation
from rooflight.roofline.timeline_report import idle_sentence, unbounded_sentence
from rooflight.roofline.what_if_report import what_if_facts, what_if_notes


def report_of(analysis: Analysis, *, top: int = 10, notes: Iterable[str] = ()) -> Report:
    """The report of an analysis; ``top`` limits the rows of its long tables. Raises ValueError for ``top`` < 1."""
    if top < 1:
        raise ValueError(f"--top {top}: at least 1 row")
    verdict = conclusion(analysis)
    return Report(
        title=f"Speed of light: {analysis.target or 'recorded session'} on {analysis.device.name}",
        data=analysis_data(analysis, verdict),
        facts=tuple(_facts(analysis)),
        tables=tuple(analysis_tables(analysis, top)),
        series=tuple(analysis_series(analysis)),
        notes=(*notes, *analysis.session.notes, *_notes(analysis)),
        conclusion=verdict,
    )


def conclusion(analysis: Analysis) -> str:
    """How far from the speed of light, and what limits it, in plain words."""
    totals = analysis.totals
    measurement = analysis.measurement
    if not totals.op_bound_s:
        return _without_bound(analysis)
    limits = _limiter_shares(analysis.operations)
    limiter, share = max(limits.items(), key=lambda item: item[1])
    where = {
        Limiter.COMPUTE: "arithmetic",
        Limiter.MEMORY: "memory bandwidth",
        Limiter.CACHE: "moving data that fit a cache, bounded as if from main memory",
        Limiter.NETWORK: "the network",
    }[limiter]
    bound = Quantity(totals.op_bound_s, "s")
    limit = f"{percent(share)} of the bound is limited by {where}, most of it in {_most_of(limiter, analysis)}"
    if analysis.beats_light:
        return (
            f"Contradiction: the step took {Quantity(totals.measured_s or 0.0, 's')}, and this device needs at least "
            f"{Quantity(analysis.program.warm.program_bound_s, 's')} for its work, however it is programmed."
        )
    if totals.measured_s is None:
        predicted = predicted_sentence(analysis)
        other = measurement is not None and not measurement.of_the_session
        timed = " The step that was timed is not the recorded one." if other else ""
        elsewhere = there_sentence(analysis) + (idle_sentence(analysis) if analysis.there is not None else "")
        return (
            f"These ops, one by one, take at least {bound}: {limit}.{predicted}{timed}{_without_peaks(analysis)}"
            f"{elsewhere}"
        )
    speed = totals.measured_s / totals.op_bound_s
    text = (
        f"The step took {Quantity(totals.measured_s, 's')}, {_times(speed)} the {bound} that its ops need at the speed "
        f"of light ({percent(1 / speed)} efficiency); {limit}.{unbounded_sentence(analysis)}{_without_peaks(analysis)}"
    )
    losses = {gap.name: gap.seconds for gap in analysis.waterfall}
    if "overhead and idle" in losses:
        outside, slow = losses["overhead and idle"], losses.get("kernels slower than their bound", 0.0)
        waited = losses.get("exposed communication beyond its bound", 0.0)
        if waited > max(outside, slow):
            text += f" The largest loss is communication that nothing hides: {Quantity(waited, 's')} beyond its bound."
        elif outside > slow:
            text += f" The largest loss is time outside the ops: {Quantity(outside, 's')} of overhead."
        elif slow > 0:
            text += f" The largest loss is inside the ops, which run {Quantity(slow, 's')} longer than they must."
    text += idle_sentence(analysis)
    if measurement is not None and measurement.disturbed:
        taken = percent(measurement.others_share or 0.0)
        text += f" Other programs took {taken} of the CPU meanwhile: measure again on a quiet machine."
    return text


def _without_bound(analysis: Analysis) -> str:
    """Why there is nothing to compare with."""
    if not analysis.totals.calls and analysis.timeline is not None:
        text = (
            "The trace has the device's work, and no op on the host that launched it: nothing can be bounded. Record "
            "it with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True)."
        )
        return text + idle_sentence(analysis)
    if not analysis.totals.calls:
        return (
            "No ops were recorded: the program ran none while the recording was open, or ran them in another thread or "
            "process. A recording sees the ops of the thread that opened it: open it in the thread that works."
        )
    if not analysis.coverage.calls:
        first = analysis.coverage.uncosted[0]
        why = f"The reason for {plain_name(first.name)}: {first.reason}."
        return f"None of the ops has a cost, so nothing can be bounded. {why}{idle_sentence(analysis)}"
    return "The recorded ops do no work that a roof of this device bounds."


def _without_peaks(analysis: Analysis) -> str:
    missing = [name for name in analysis.unknown_peaks if "matrix" in name]
    if not missing:
        return ""
    return f" Arithmetic is not bounded: {analysis.device.name} has no known {missing[0]}; try another --dtype."


def _facts(analysis: Analysis) -> Iterable[tuple[str, Cell]]:
    totals, coverage, device = analysis.totals, analysis.coverage, analysis.device
    if model_class := analysis.session.environment.get("model_class"):
        yield "model", model_class
    yield "device", f"{device.name} ({_source(device)})"
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
    yield from predicted_facts(analysis)
    yield from measured_facts(analysis)
    if analysis.timeline is not None and analysis.timeline.launches is not None:
        yield from launch_facts(analysis.timeline.launches)


def _notes(analysis: Analysis) -> Iterable[str]:
    coverage, device = analysis.coverage, analysis.device
    if coverage.uncosted:
        calls = sum(op.calls for op in coverage.uncosted)
        without = count_of(calls, "call has no cost and is", "calls have no cost and are")
        yield f"{without} missing from the totals: the bound is lower than the truth."
    if inferred := [op for op in analysis.operations if _is_inferred(op)]:
        calls = sum(op.calls for op in inferred)
        named = ", ".join(dict.fromkeys(plain_name(op.signature.name) for op in inferred))
        yield (
            f"{count_of(calls, 'call was', 'calls were')} not recorded, because the kernels bypass torch's dispatcher: "
            f"{named}. They are inferred from the classes of modules and the shapes of their tensors."
        )
    if coverage.upper:
        yield (
            f"{count_of(coverage.upper, 'call is', 'calls are')} costed under assumptions about the data: masks hide "
            "nothing, routing is balanced, sequences are as long as the longest, and what indices, sparse "
            "tensors or regions pick are different elements."
        )
    for name, calls in analysis.unknown_peaks.items():
        yield f"{device.name} has no known {name}: {count_of(calls, 'call is', 'calls are')} bounded without it."
    if missing := memory_shortage(analysis.memory, device):
        yield f"{missing} The bound is that of one device with enough memory."
    if analysis.without_storages and analysis.totals.calls:
        yield (
            "The fused and the program bound are inferred: which op read what another wrote is not known, so they "
            "leave out all bytes between ops. With the execution trace of the run (--execution-trace) they are exact."
        )
    yield from _cache_note(analysis)
    if rules := _float32_text(analysis):
        yield f"float32 work is bounded as follows: {rules}."
    headroom = _clock_headroom(analysis)
    if headroom > 1:
        yield (
            f"{device.name}'s matrix peak is quoted below its highest clock: a kernel may run up to "
            f"{percent(headroom - 1)} faster than its bound."
        )
    yield from what_if_notes(analysis)
    yield from predicted_notes(analysis)
    yield from measured_notes(analysis)


def _is_inferred(operation: Operation) -> bool:
    """Whether a module formula gave the op, which nobody saw."""
    return operation.signature.is_unseen and not isinstance(operation.cost, Uncosted)


def _cache_note(analysis: Analysis) -> Iterable[str]:
    warm, program = analysis.program.warm, analysis.program
    if warm.op_bound_s >= analysis.totals.op_bound_s:
        return
    resident = sum(op.calls for op in analysis.operations if op.bound and op.bound.cache_resident)
    lowered = [
        f"{name} {Quantity(warm_s, 's')}"
        for name, bound_s, warm_s in (
            ("op bound", analysis.totals.op_bound_s, warm.op_bound_s),
            ("fused bound", program.fused_bound_s, warm.fused_bound_s),
            ("program bound", program.program_bound_s, warm.program_bound_s),
        )
        if warm_s < bound_s
    ]
    yield (
        f"{_caches(analysis.device)} can hold part of what the ops move, and all of it in "
        f"{count_of(resident, 'call')}{' (limiter cache, where moving it takes longest)' if resident else ''}: ops may "
        f"run faster than main memory's roof when their data are still there. With a full cache: {', '.join(lowered)}."
    )


def _caches(device: DeviceSpec) -> str:
    """The caches that were not measured, with the peak of each, as far as one is printed."""
    named = [
        f"{level.name} ({_at_most(level)})"
        for level in device.memory[:-1]
        if level.bytes_per_s is None and level.capacity_bytes
    ]
    return " and ".join(named) if named else "A cache that is not listed"


def _at_most(level: MemoryLevel) -> str:
    peak = level.peak_bytes_per_s
    return f"at most {Quantity(peak, 'B/s')}" if peak else "of unknown bandwidth, taken as infinitely fast"


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


def _times(factor: float) -> str:
    return f"{factor:.1f} times" if factor < 100 else f"{factor:,.0f} times"


def _source(device: DeviceSpec) -> str:
    kinds = [name for name, roofs in (("datasheet", device.datasheet), ("calibrated", device.calibrated)) if roofs]
    return " and ".join(kinds)


def _matrix_formats(analysis: Analysis) -> list[str]:
    """The formats of which matrix peaks bound the run."""
    return sorted({analysis.matrix_precision(op, dtype) for op, dtype in _products(analysis)})


def _products(analysis: Analysis) -> list[tuple[OpSignature, str]]:
    """Ops that compute matrix products, each with the dtype of those."""
    return [
        (operation.signature, operation.cost.matrix_dtype)
        for operation in analysis.operations
        if not isinstance(operation.cost, Uncosted) and operation.cost.matrix_flops and operation.cost.matrix_dtype
    ]


def _float32_text(analysis: Analysis) -> str:
    """At which precision each kind of float32 product is bounded, and why."""
    rules, device = analysis.float32, analysis.device
    found: dict[tuple[Float32Kind, str, str], None] = {}
    for op, dtype in _products(analysis):
        if precision_of(dtype) == "float32":
            kind, precision = traits_of(op.name).float32, rules.precision_of(op)
            reason = "the kernels in the trace" if op.attribute(COMPUTED_IN) else rules.by_kind[kind].reason
            used = device.computed_as(precision)
            found[kind, used, reason if used == precision else "what if"] = None
    order = list(Float32Kind)
    return ", ".join(
        f"{kind.value} at the {used} peak ({reason})"
        for kind, used, reason in sorted(found, key=lambda each: (order.index(each[0]), *each[1:]))
    )


def _clock_headroom(analysis: Analysis) -> float:
    """How much faster than its bound a matrix product may run since the datasheet's peaks are quoted at a low clock.

    A calibrated peak above the datasheet's has taken its part of that already.
    """
    device = analysis.device
    headroom = device.matrix_clock_headroom
    if headroom is None or device.datasheet is None:
        return 1.0
    quoted = replace(device, calibrated=None)
    peaks = [(quoted.matrix_peak(name), device.matrix_peak(name)) for name in _matrix_formats(analysis)]
    return max((headroom * listed / used for listed, used in peaks if listed and used), default=headroom)


def _roofs(analysis: Analysis) -> str:
    device = analysis.device
    parts = []
    for name in _matrix_formats(analysis):
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
