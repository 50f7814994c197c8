"""The notes of an analysis's report: what its figures leave out, and how far they can be trusted."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from rooflight.costs.cost import Float32Kind, OpCost
from rooflight.costs.registry import traits_of
from rooflight.hardware.devices import find_by_torch_name
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.records.dtypes import precision_of
from rooflight.records.estimate import Source
from rooflight.records.measurement import Measurement, other_step
from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.records.session import Session
from rooflight.records.signature import COMPUTED_IN, FROM_HOST, ON_HOST, TO_HOST, OpSignature
from rooflight.roofline.costed import CostedSession
from rooflight.roofline.groups import Operation, plain_name, seconds_by
from rooflight.roofline.host import Work
from rooflight.roofline.memory.texts import growth_text, memory_shortage, missed_text

_SCATTER: Final = 1.5  # slowest step over fastest, from which on the median is doubtful
_NAMED: Final = 4


def analysis_notes(analysis: CostedSession) -> Iterable[str]:
    """All notes for which there is reason."""
    coverage, device = analysis.coverage, analysis.device
    if coverage.uncosted:
        calls = sum(op.calls for op in coverage.uncosted)
        without = count_of(calls, "call has no cost and is", "calls have no cost and are")
        yield f"{without} missing from the totals: the bound is lower than the truth."
    if inferred := [op for op in analysis.operations if op.costed and op.signature.is_unseen]:
        calls = sum(op.calls for op in inferred)
        named = ", ".join(dict.fromkeys(plain_name(op.name) for op in inferred))
        yield (
            f"{count_of(calls, 'call was', 'calls were')} not recorded, because the kernels bypass torch's dispatcher: "
            f"{named}. They are inferred from the classes of modules and the shapes of their tensors."
        )
    if assumed := coverage.upper_calls:
        named = count_of(assumed, "call depends on its data; its", "calls depend on their data; their")
        yield f"{named} cost is an upper estimate (--json lists {'it' if assumed == 1 else 'them'})."
    if repeated := sum(op.calls for op in analysis.operations if _takes_one_number(op)):
        yield (
            f"{count_of(repeated, 'product takes', 'products take')} a tensor that is one number repeated, as the "
            "gradient is that .sum().backward() makes: little of them has to be computed, and bounds are of that. The "
            "gradient of .square().mean() has numbers of its own."
        )
    yield from _host_side_note(analysis)
    if not device.memory:
        yield f"No roof is known: {'; '.join(device.notes) or device.name}."
    for name, calls in analysis.unknown_peaks.items() if device.memory else ():
        yield f"{device.name} has no known {name}: {count_of(calls, 'call is', 'calls are')} bounded without it."
    yield from filter(None, (growth_text(analysis.memory, device.name), missed_text(analysis.session.run)))
    if missing := memory_shortage(analysis.memory, device.name, compiled=analysis.session.compiled):
        yield f"{missing} The bound is that of one device with enough memory."
    names = {plain_name(op.name): op.signature for op in analysis.operations}
    if kernels := ", ".join(sorted(name for name, op in names.items() if _allocates_inside(name, op))):
        yield f"The peak of memory leaves out what kernels allocate and free inside, which may be much here: {kernels}."
    if (inside := analysis.memory.inside_custom_ops_bytes) > analysis.memory.peak_bytes:
        yield (
            f"What custom ops hold inside is not known: up to {Quantity(inside, 'B')} would be alive if one copied all "
            "that it reads and writes."
        )
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
    yield from _predicted_notes(analysis)
    yield from _measured_notes(analysis)


def _takes_one_number(op: Operation) -> bool:
    spared = isinstance(op.cost, OpCost) and op.cost.avoidable_flops > 0
    return spared and any(tensor.distinct == 1 < tensor.numel for tensor in op.signature.inputs)


_ALLOCATE_INSIDE: Final = re.compile(r"(_cudnn_|mkldnn_|miopen_)?(lstm|gru|rnn)|slow_conv|convolution.*_backward")


def _allocates_inside(name: str, op: OpSignature) -> bool:
    """Whether libraries keep reserves, columns or copies for an op that no recording sees."""
    return bool(_ALLOCATE_INSIDE.match(name)) or ("convolution" in name and op.attribute("transposed") is True)


def _host_side_note(analysis: CostedSession) -> Iterable[str]:
    if analysis.device.kind == "cpu":
        return
    on_host = Work.of((op.signature, op.calls) for op in analysis.operations if ON_HOST in op.signature.attributes)
    if on_host.calls:
        told = count_of(on_host.calls, "op works", "ops work")
        work = f"{Quantity(on_host.flops, 'FLOP')}, {Quantity(on_host.bytes_moved, 'B')}"
        name = analysis.device.name
        yield f"{told} on tensors in the host's memory ({work}): they take the host's time, none of {name}'s."
    crossing = {FROM_HOST, TO_HOST}
    if copies := sum(op.calls for op in analysis.operations if crossing & {*op.signature.attributes}):
        told = count_of(copies, "copy", "copies")
        yield f"{told} to or from the host's memory: bounded by the device's memory, not by the link between the two."


def _cache_note(analysis: CostedSession) -> Iterable[str]:
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
    whole = f", and all of it in {count_of(resident, 'call')} (limiter cache, where moving it takes longest)"
    yield (
        f"{_caches(analysis.device)} can hold part of what the ops move{whole if resident else ''}: ops may "
        f"run faster than main memory's roof when their data are still there. With a full cache: {', '.join(lowered)}."
    )


def _caches(device: DeviceSpec) -> str:
    named = []
    for level in device.memory[:-1]:
        if level.bytes_per_s is None and level.capacity_bytes:
            peak = level.peak_bytes_per_s
            speed = f"at most {Quantity(peak, 'B/s')}" if peak else "of unknown bandwidth, taken as infinitely fast"
            named.append(f"{level.name} ({speed})")
    return " and ".join(named) if named else "A cache that is not listed"


def _float32_text(analysis: CostedSession) -> str:
    rules, device = analysis.float32, analysis.device
    found: dict[tuple[Float32Kind, str, str], None] = {}
    for op, dtype in analysis.products:
        if precision_of(dtype) == "float32":
            kind, precision = traits_of(op.name).float32, rules.precision_of(op)
            reason = "the kernels in the trace" if op.attribute(COMPUTED_IN) else rules.rule_of(op).reason
            used = device.computed_as(precision)
            found[kind, used, reason if used == precision else "what if"] = None
    order = list(Float32Kind)
    return ", ".join(
        f"{kind.value} at the {used} peak ({reason})"
        for kind, used, reason in sorted(found, key=lambda each: (order.index(each[0]), *each[1:]))
    )


def _clock_headroom(analysis: CostedSession) -> float:
    """How much faster than its bound a matrix product may run since the datasheet's peaks are quoted at a low clock.

    A calibrated peak above the datasheet's has taken its part of that already.
    """
    device = analysis.device
    headroom = device.matrix_clock_headroom
    if headroom is None or device.datasheet is None:
        return 1.0
    quoted = replace(device, calibrated=None)
    peaks = [(quoted.matrix_peak(name), device.matrix_peak(name)) for name in analysis.matrix_formats]
    return max((headroom * listed / used for listed, used in peaks if listed and used), default=headroom)


def what_if_notes(analysis: CostedSession) -> Iterable[str]:
    """What predictions and measurements have to do with roofs that are supposed."""
    device = analysis.device
    if device.name == device.part_name:
        return
    if analysis.predicts:
        yield (
            f"Models learned from {device.part_name} with its own clock and precisions. Work that another clock or "
            "precision changes is predicted as on a device that nobody measured."
        )
    if device.what_if_clock_hz is not None and analysis.measurement is not None:
        yield (
            f"The step was timed at the clock that {device.part_name} had: lock it too (nvidia-smi --lock-gpu-clocks) "
            "before you compare."
        )


def _predicted_notes(analysis: CostedSession) -> Iterable[str]:
    if not analysis.predicts:
        return
    predicted, device = analysis.totals.predicted, analysis.device.name
    uncosted = sum(op.calls for op in analysis.operations if not op.costed)
    if uncosted:
        without = count_of(uncosted, "op has no cost and is", "ops have no cost and are")
        yield f"{without} not predicted: the predicted time is lower than the truth."
    left_out = analysis.totals.calls - uncosted - (predicted.calls if predicted else 0)
    if left_out:
        unbounded = count_of(left_out, "op does work", "ops do work")
        yield f"{unbounded} that no figure of {device} bounds, and {'is' if left_out == 1 else 'are'} not predicted."
    if predicted is None or not predicted.time_s:
        return
    if predicted.typical_s:
        yield (
            f"{percent(predicted.typical_s / predicted.time_s)} of the predicted time is of ops without a model "
            f"({_largest(analysis, typical=True)}): twice their bound, with a wide interval."
        )
    if predicted.extrapolated_s:
        measured_s = predicted.time_s - predicted.typical_s - predicted.extrapolated_s
        yield (
            f"{percent(measured_s / predicted.time_s)} of the predicted time is of ops measured on this device. Others "
            f"differ by kind, size or device ({_largest(analysis, typical=False)}): the interval is wider, and less "
            "certain than 90 %."
        )
    if predicted.holds is False:
        yield "The measured ops lie outside of the predicted interval: the models do not fit this device or program."


def _largest(analysis: CostedSession, *, typical: bool) -> str:
    names = [
        *seconds_by(
            (plain_name(op.name), op.predicted.time_s)
            for op in analysis.operations
            if op.estimate and op.predicted and op.estimate.extrapolated
            if (op.estimate.source is Source.TYPICAL) is typical
        )
    ]
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _measured_notes(analysis: CostedSession) -> Iterable[str]:
    measurement = analysis.measurement
    if analysis.measured_on:
        yield (
            f"Measured on {analysis.measured_on}, not on {analysis.device.name}: no efficiency is computed from bounds "
            "of one and times of the other."
        )
    if unknown := _unknown_gpu(analysis.session, analysis.device):
        yield (
            f"{unknown}, on which this was measured, is not in the catalog: {analysis.device.name} stands for it, and "
            "its efficiencies are right as far as the two are alike."
        )
    if measurement is None:
        return
    yield from _other_threads(analysis)
    if not measurement.of_the_session:
        text = other_step(measurement)
        yield f"{text[0].upper()}{text[1:]}."
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
    if analysis.session.compiled:
        yield (
            "Compiled code runs eagerly while it is recorded, and its ops were timed then: the account shares what it "
            "takes in other steps among them, by what fusion leaves of these times."
        )
    if len(measurement.wall_samples_s) and (analysis.busy_s or 0.0) > (analysis.totals.measured_s or 0.0):
        yield "The ops, timed one by one, took longer than whole steps: their times are upper limits."
    if untimed := analysis.untimed_calls:
        yield (
            f"{count_of(untimed, 'call')} could not be timed (most often a number that the program reads back): the "
            "efficiency of such calls is unknown."
        )


def _other_threads(analysis: CostedSession) -> Iterable[str]:
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


def _disturbances(analysis: CostedSession, measurement: Measurement) -> Iterable[str]:
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


def _contradictions(analysis: CostedSession) -> Iterable[str]:
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


def _caches_explain(analysis: CostedSession) -> str:
    bounds = analysis.program
    if bounds.warm.program_bound_s < bounds.program_bound_s:
        return f"; even with a full cache the bound is {Quantity(bounds.warm.program_bound_s, 's')}"
    if len(analysis.device.memory) < 2:
        return "; the data came from a cache, of which the roofs have none"
    return ""


def _unknown_gpu(session: Session, device: DeviceSpec) -> str:
    """The name of the GPU that a session was measured on if the catalog does not have it, so that ``device`` stands for
    it; empty otherwise.
    """
    name = session.environment.get("gpu", "") if session.environment.get("device_kind") == "cuda" else ""
    stands = session.measurement is not None and device.kind == "cuda" and name not in ("", device.part_name)
    return name if stands and find_by_torch_name(name) is None else ""
