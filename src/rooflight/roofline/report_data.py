"""An Analysis as ``rooflight.analysis/1``: what ``rooflight analyze --json`` writes."""

from __future__ import annotations

from collections.abc import Mapping

from rooflight.costs.cost import Uncosted
from rooflight.devices.spec import DeviceSpec
from rooflight.records.document import Document, Fields
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.communication_report import CommunicationData, communication_data
from rooflight.roofline.elsewhere_report import (
    MeasuredThereData,
    groups_there,
    measured_there_data,
    operations_there,
)
from rooflight.roofline.measured_report import MeasurementData, measurement_data
from rooflight.roofline.memory_report import MemoryData, memory_data
from rooflight.roofline.predicted_report import PredictedFields, PredictionData, prediction_data, row_data, wall_data
from rooflight.roofline.program import warm_bound_s
from rooflight.roofline.sums import Contradiction, Group, Operation
from rooflight.roofline.timeline_data import TimelineData, timeline_data
from rooflight.roofline.timeline_report import UnattributedData, unattributed_data


class LevelData(Fields, frozen=True, kw_only=True):
    """A level of memory, nearest to the arithmetic first. ``peak_bytes_per_s``: the most that a cache can supply, as
    its vendor prints it, for the warm bounds.
    """

    name: str
    capacity_bytes: int | None
    bytes_per_s: float | None
    peak_bytes_per_s: float | None


class DeviceData(Fields, frozen=True, kw_only=True):
    """The figures that bounds are computed with, and where they come from; a CPU's are those of ``threads`` threads.

    With what-if roofs ``name`` is that of the ``part`` and of these: matrix work of more bits is bounded in
    ``what_if_precision``, the clock is locked at ``what_if_clock_hz``.
    """

    name: str
    part: str
    what_if_precision: str | None
    what_if_clock_hz: float | None
    kind: str
    matrix_flops_per_s: Mapping[str, float]
    vector_flops_per_s: Mapping[str, float]
    memory: tuple[LevelData, ...]
    link_bytes_per_s: float | None
    roofs_used: str
    threads: int | None
    sources: tuple[str, ...]


class TotalsData(PredictedFields, frozen=True, kw_only=True):
    """Sums over all ops. ``measured_s`` is the median of steps, ``ops_measured_s`` the sum of the ops' medians.

    The ``warm`` bounds are what the bounds are with all that a cache can hold in it. ``predicted_s`` is the device's
    time, ``predicted_wall_s`` that of the step with the host of ``prediction``. ``inferred``: which op read what
    another wrote is not known, as in a trace without its execution trace, so that the fused and the program bound
    leave out all bytes between ops.
    """

    predicted_wall_s: float | None
    predicted_wall_low_s: float | None
    predicted_wall_high_s: float | None
    calls: int
    matrix_flops: int
    vector_flops: int
    bytes_moved: int
    bytes_read: int
    bytes_written: int
    bytes_sent: int
    op_bound_s: float
    fused_bound_s: float
    program_bound_s: float
    warm_op_bound_s: float
    warm_fused_bound_s: float
    warm_program_bound_s: float
    inferred: bool
    measured_s: float | None
    ops_measured_s: float | None


class UncostedData(Fields, frozen=True, kw_only=True):
    """An op without a cost, which every total lacks; ``bytes`` are those of its tensors, ``modules`` where it ran."""

    name: str
    reason: str
    calls: int
    bytes: int
    modules: tuple[str, ...]


class CoverageData(Fields, frozen=True, kw_only=True):
    """Shares of calls and bytes that have a cost, None of none; ``upper_calls`` are costed under an assumption about
    their data.
    """

    calls: float | None
    bytes: float | None
    uncosted: tuple[UncostedData, ...]
    upper_calls: int


class GapData(Fields, frozen=True, kw_only=True):
    """A gap of the waterfall: ``seconds`` more than the one before, ``until_s`` in all, and what would shrink it."""

    name: str
    seconds: float
    until_s: float
    remedy: str


class GroupData(PredictedFields, frozen=True, kw_only=True):
    """The ops that share a phase, module, class of module or name. A list of groups sums to the totals."""

    name: str
    calls: int
    matrix_flops: int
    vector_flops: int
    bytes_moved: int
    bytes_sent: int
    op_bound_s: float
    limiter: str
    measured_s: float | None
    efficiency: float | None
    measured_there_s: float | None = None


class OperationData(PredictedFields, frozen=True, kw_only=True):
    """All calls of one signature; figures are of all of them. Those of its cost are None for an op without one.

    ``limiter`` is compute, memory, cache (its data fit a cache, whose speed ``op_bound_s`` leaves out and
    ``warm_op_bound_s`` has), network or nothing.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    modules: tuple[str, ...]
    calls: int
    costed: bool
    reason: str | None
    matrix_flops: int | None
    vector_flops: int | None
    bytes_moved: int | None
    bytes_sent: int | None
    assumed: bool | None
    op_bound_s: float | None
    warm_op_bound_s: float | None
    limiter: str | None
    measured_s: float | None
    efficiency: float | None
    measured_there_s: float | None
    prediction_source: str | None
    extrapolated: bool | None


class ContradictionData(Fields, frozen=True, kw_only=True):
    """Calls measured faster than their bound; ``measured_s`` is the fastest."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    calls: int
    bound_s: float
    measured_s: float


class AnalysisDocument(Document, frozen=True, kw_only=True, tag="rooflight.analysis/1"):
    """What a program must do, how fast a device could do it, and how fast it ran: SI units, None where unknown.

    ``model_class`` is the class of the model that ran. A session that was measured on another device than that of the
    bounds has its times in ``measured_there`` and the ``measured_there_s`` of groups and ops; ``timeline`` is of there.
    """

    target: str
    model_class: str | None
    device: DeviceData
    environment: Mapping[str, str]
    totals: TotalsData
    prediction: PredictionData | None
    coverage: CoverageData
    waterfall: tuple[GapData, ...]
    memory: MemoryData
    communication: CommunicationData
    by_phase: tuple[GroupData, ...]
    by_module: tuple[GroupData, ...]
    by_layer: tuple[GroupData, ...]
    by_op: tuple[GroupData, ...]
    ops: tuple[OperationData, ...]
    contradictions: tuple[ContradictionData, ...]
    measurement: MeasurementData | None
    measured_there: MeasuredThereData | None
    timeline: TimelineData | None
    unattributed: UnattributedData | None
    wall_samples_s: tuple[float, ...]
    conclusion: str


def analysis_data(analysis: Analysis, conclusion: str) -> AnalysisDocument:
    """The machine-readable whole of an analysis."""
    measurement, there = analysis.measurement, operations_there(analysis)
    return AnalysisDocument(
        target=analysis.target,
        model_class=analysis.session.environment.get("model_class"),
        device=device_data(analysis.device),
        environment=dict(analysis.session.environment),
        totals=_totals_data(analysis),
        prediction=prediction_data(analysis),
        coverage=_coverage_data(analysis),
        waterfall=tuple(
            GapData(name=gap.name, seconds=gap.seconds, until_s=gap.until_s, remedy=gap.remedy)
            for gap in analysis.waterfall
        ),
        memory=memory_data(analysis.memory, analysis.device.dram_capacity_bytes),
        communication=communication_data(analysis.communication),
        by_phase=_groups(analysis, "phase"),
        by_module=_groups(analysis, "module"),
        by_layer=_groups(analysis, "layer"),
        by_op=_groups(analysis, "op"),
        ops=tuple(
            _operation_data(operation, analysis.device, there.get(operation.signature))
            for operation in analysis.operations
        ),
        contradictions=tuple(map(_contradiction_data, analysis.contradictions)),
        measurement=measurement_data(analysis),
        measured_there=measured_there_data(analysis),
        timeline=timeline_data(analysis),
        unattributed=unattributed_data(analysis),
        wall_samples_s=tuple(measurement.wall_samples_s.tolist()) if measurement else (),
        conclusion=conclusion,
    )


def group_data(group: Group, there_s: float | None = None) -> GroupData:
    """A roll-up, with the time that was measured on another device."""
    return GroupData(
        name=group.name,
        calls=group.calls,
        matrix_flops=group.matrix_flops,
        vector_flops=group.vector_flops,
        bytes_moved=group.bytes_moved,
        bytes_sent=group.bytes_sent,
        op_bound_s=group.bound_s,
        limiter=group.limiter,
        measured_s=group.measured_s,
        efficiency=group.efficiency,
        measured_there_s=there_s,
        **row_data(group.predicted),
    )


def _groups(analysis: Analysis, key: str) -> tuple[GroupData, ...]:
    there = groups_there(analysis, key)
    return tuple(group_data(group, there.get(group.name)) for group in analysis.by(key))


def _totals_data(analysis: Analysis) -> TotalsData:
    totals = analysis.totals
    return TotalsData(
        calls=totals.calls,
        matrix_flops=totals.matrix_flops,
        vector_flops=totals.vector_flops,
        bytes_moved=totals.bytes_moved,
        bytes_read=totals.bytes_read,
        bytes_written=totals.bytes_written,
        bytes_sent=totals.bytes_sent,
        op_bound_s=totals.op_bound_s,
        fused_bound_s=analysis.program.fused_bound_s,
        program_bound_s=analysis.program.program_bound_s,
        warm_op_bound_s=analysis.program.warm.op_bound_s,
        warm_fused_bound_s=analysis.program.warm.fused_bound_s,
        warm_program_bound_s=analysis.program.warm.program_bound_s,
        inferred=analysis.without_storages,
        measured_s=totals.measured_s,
        ops_measured_s=totals.ops_measured_s,
        **row_data(totals.predicted),
        **wall_data(totals.predicted_wall),
    )


def _coverage_data(analysis: Analysis) -> CoverageData:
    coverage = analysis.coverage
    return CoverageData(
        calls=coverage.calls,
        bytes=coverage.bytes,
        uncosted=tuple(
            UncostedData(name=op.name, reason=op.reason, calls=op.calls, bytes=op.bytes, modules=op.modules)
            for op in coverage.uncosted
        ),
        upper_calls=coverage.upper,
    )


def _operation_data(operation: Operation, device: DeviceSpec, there_s: float | None) -> OperationData:
    cost, calls = operation.cost, operation.calls
    known = None if isinstance(cost, Uncosted) else cost
    return OperationData(
        name=operation.signature.name,
        shapes=operation.signature.input_shapes,
        dtypes=tuple(tensor.dtype for tensor in operation.signature.inputs),
        modules=operation.modules,
        calls=calls,
        costed=known is not None,
        reason=cost.reason if isinstance(cost, Uncosted) else None,
        matrix_flops=known.matrix_flops * calls if known else None,
        vector_flops=known.vector_flops * calls if known else None,
        bytes_moved=known.bytes_moved * calls if known else None,
        bytes_sent=known.bytes_sent * calls if known else None,
        assumed=known.upper if known else None,
        op_bound_s=operation.bound_s if operation.bound else None,
        warm_op_bound_s=calls * warm_bound_s(cost, operation.bound, device) if operation.bound else None,
        limiter=operation.bound.limiter.value if operation.bound else None,
        measured_s=operation.measured_s,
        efficiency=operation.efficiency,
        measured_there_s=there_s,
        prediction_source=operation.estimate.source.value if operation.estimate else None,
        extrapolated=operation.estimate.extrapolated if operation.estimate else None,
        **row_data(operation.predicted),
    )


def _contradiction_data(found: Contradiction) -> ContradictionData:
    return ContradictionData(
        name=found.signature.name,
        shapes=found.signature.input_shapes,
        calls=found.calls,
        bound_s=found.bound_s,
        measured_s=found.measured_s,
    )


def device_data(device: DeviceSpec) -> DeviceData:
    """A device with its peaks: of datasheet and calibration the higher."""
    return DeviceData(
        name=device.name,
        part=device.part_name,
        what_if_precision=device.what_if_precision,
        what_if_clock_hz=device.what_if_clock_hz,
        kind=device.kind,
        matrix_flops_per_s=_peaks(device, "matrix_flops_per_s"),
        vector_flops_per_s=_peaks(device, "vector_flops_per_s"),
        memory=tuple(
            LevelData(
                name=level.name,
                capacity_bytes=level.capacity_bytes,
                bytes_per_s=level.bytes_per_s,
                peak_bytes_per_s=level.peak_bytes_per_s,
            )
            for level in device.memory
        ),
        link_bytes_per_s=device.link_bytes_per_s,
        roofs_used=device.roofs_used,
        threads=device.threads,
        sources=tuple(roofs.source for roofs in (device.datasheet, device.calibrated) if roofs),
    )


def _peaks(device: DeviceSpec, name: str) -> dict[str, float]:
    peaks: dict[str, float] = {}
    for roofs in (device.datasheet, device.calibrated):
        for precision, rate in (getattr(roofs, name) if roofs else {}).items():
            peaks[precision] = max(rate, peaks.get(precision, 0.0))
    return peaks
