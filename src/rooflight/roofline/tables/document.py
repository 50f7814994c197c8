"""An Analysis as ``rooflight.analysis/1``: what ``rooflight analyze --json`` writes.

Most of it are the nouns of the analysis themselves; here is what a document puts together from several of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from rooflight.hardware.devices.spec import DeviceSpec, MemoryLevel
from rooflight.records.account import Regime
from rooflight.records.document import Document, Fields
from rooflight.records.timeline import Run, RunTime
from rooflight.roofline.account.account import AccountFields
from rooflight.roofline.account.accounted import Accounted
from rooflight.roofline.decode_formats import DecodeFormat, decode_formats
from rooflight.roofline.findings import Diagnosis, Finding, HotSpot, NotWorthIt
from rooflight.roofline.groups import Contradiction, Coverage, GroupFigures, OperationFigures, SummedFields
from rooflight.roofline.memory.use import MemoryFigures
from rooflight.roofline.network import CommunicationFigures
from rooflight.roofline.predicted import WallFields
from rooflight.roofline.tables.timeline import UnattributedWork, unattributed_work


class DeviceFigures(Fields, frozen=True, kw_only=True):
    """The figures that bounds are computed with, of datasheet and calibration the higher, and where they come from; a
    CPU's are those of ``threads`` threads.

    ``ridge_points`` are the matrix peaks over the bandwidth of main memory, FLOP/B: an op of more arithmetic intensity
    is limited by compute.

    With what-if roofs ``name`` is that of the ``part`` and of these: matrix work of more bits is bounded in
    ``what_if_precision``, the clock is locked at ``what_if_clock_hz``. ``notes`` say what is particular, such as how to
    measure roofs that are not known.
    """

    name: str
    part: str
    what_if_precision: str | None
    what_if_clock_hz: float | None
    kind: str
    matrix_flops_per_s: Mapping[str, float]
    vector_flops_per_s: Mapping[str, float]
    ridge_points: Mapping[str, float]
    memory: tuple[MemoryLevel, ...]
    link_bytes_per_s: float | None
    roofs_used: str
    threads: int | None
    sources: tuple[str, ...]
    notes: tuple[str, ...] = ()


class TotalsFigures(SummedFields, frozen=True, kw_only=True):
    """Sums over all ops, beside the bounds of the whole program.

    The ``warm`` bounds are what the bounds are with all that a cache can hold in it. ``inferred``: which op read what
    another wrote is not known, as in a trace without its execution trace, so that the fused and the program bound
    leave out all bytes between ops. ``efficiency`` is a bound / ``measured_s``: the op bound, or of compiled programs
    the fused bound, as ``efficiency_of`` says.
    """

    efficiency: float | None
    efficiency_of: str
    fused_bound_s: float
    program_bound_s: float
    warm_op_bound_s: float
    warm_fused_bound_s: float
    warm_program_bound_s: float
    inferred: bool


class HostFigures(Fields, frozen=True, kw_only=True):
    """The host that a wall time assumes: seconds for an eager pointwise op, and before the first op of a step. With
    ``replayed`` the step is one CUDA graph. ``time_s`` is what it needs to issue the step.
    """

    launch_s: float
    first_s: float
    replayed: bool
    source: str
    time_s: float


class PredictionFigures(WallFields, frozen=True, kw_only=True):
    """The prediction of the whole: what of it is extrapolated, or of ops that no model knows, and of how many calls.
    Its times are the device's, as if replayed from a graph; ``predicted_wall_s`` includes the ``host``'s.
    """

    host: HostFigures | None
    extrapolated_s: float | None
    typical_s: float | None
    calls: int
    unpredicted_calls: int


class MeasurementFigures(Fields, frozen=True, kw_only=True):
    """How the times were taken, and how far they can be trusted.

    ``others_share`` is the share of the CPU, of 1, that other programs took while whole steps were timed; from
    ``BUSY_SHARE`` (0.05) on, the times are ``disturbed``. ``same_calls`` is the share of calls that the timed step and
    the recorded one have in common; where it is too low, the timed step is not ``of_the_session``, and no measured
    figure is compared with a bound. ``beats_light``: the step was faster than its program bound, a contradiction.
    """

    clock: str
    others_share: float | None
    disturbed: bool
    same_calls: float | None
    of_the_session: bool
    beats_light: bool


class MeasuredThere(Fields, frozen=True, kw_only=True):
    """What was measured on ``device``, which is not the one of the bounds: the median step, the sum of the ops'
    medians, and whole steps. ``predicted_speedup``: what the ops with a prediction took there, over their predicted
    time on the device of the bounds.
    """

    device: str
    clock: str
    measured_s: float | None
    ops_measured_s: float | None
    wall_samples_s: tuple[float, ...]
    predicted_speedup: float | None


class AnalysisDocument(Document, frozen=True, kw_only=True, tag="rooflight.analysis/1"):
    """What a program must do, how fast a device could do it, and how fast it ran: SI units, None where unknown.

    ``model_class`` is the class of the model that ran, ``run`` the script that the step is of, if Rooflight ran it. A
    session that was measured on another device than that of the bounds has its times in ``measured_there`` and the
    ``measured_there_s`` of groups and ops; ``timeline`` is of there.
    ``regime``, ``findings``, ``not_worth_it`` and ``hot_spots`` are those of its diagnosis.
    """

    target: str
    model_class: str | None
    run: Run | None
    device: DeviceFigures
    environment: Mapping[str, str]
    totals: TotalsFigures
    prediction: PredictionFigures | None
    coverage: Coverage
    account: AccountFields | None
    memory: MemoryFigures
    communication: CommunicationFigures
    by_phase: tuple[GroupFigures, ...]
    by_module: tuple[GroupFigures, ...]
    by_layer: tuple[GroupFigures, ...]
    by_op: tuple[GroupFigures, ...]
    ops: tuple[OperationFigures, ...]
    contradictions: tuple[Contradiction, ...]
    measurement: MeasurementFigures | None
    measured_there: MeasuredThere | None
    timeline: RunTime | None
    unattributed: UnattributedWork | None
    wall_samples_s: tuple[float, ...]
    decode_formats: tuple[DecodeFormat, ...]
    conclusion: str
    regime: Regime | None = None
    findings: tuple[Finding, ...] = ()
    not_worth_it: tuple[NotWorthIt, ...] = ()
    hot_spots: tuple[HotSpot, ...] = ()


def analysis_data(analysis: Accounted, conclusion: str, found: Diagnosis | None = None) -> AnalysisDocument:
    """The machine-readable whole of an analysis, and of what a diagnosis ``found``."""
    measurement, timeline, program = analysis.measurement, analysis.timeline, analysis.program
    (leading, leading_s), step_s = analysis.leading_bound, analysis.totals.measured_s
    return AnalysisDocument.view(
        analysis,
        model_class=analysis.session.environment.get("model_class"),
        device=device_figures(analysis.device),
        run=analysis.session.run,
        environment=dict(analysis.session.environment),
        totals=TotalsFigures.view(
            analysis.totals,
            efficiency=leading_s / step_s if step_s and leading_s else None,
            efficiency_of=leading,
            fused_bound_s=program.fused_bound_s,
            program_bound_s=program.program_bound_s,
            warm_op_bound_s=program.warm.op_bound_s,
            warm_fused_bound_s=program.warm.fused_bound_s,
            warm_program_bound_s=program.warm.program_bound_s,
            inferred=analysis.without_storages,
        ),
        prediction=_prediction(analysis),
        **{f"by_{key}": analysis.by(key) for key in ("phase", "module", "layer", "op")},
        ops=analysis.operations,
        measurement=MeasurementFigures.view(measurement, beats_light=analysis.beats_light) if measurement else None,
        measured_there=_measured_there(analysis),
        unattributed=unattributed_work(timeline, analysis.costs) if timeline is not None else None,
        wall_samples_s=tuple(measurement.wall_samples_s.tolist()) if measurement else (),
        decode_formats=decode_formats(analysis),
        conclusion=conclusion,
        regime=found.regime if found else None,
        findings=found.findings if found else (),
        not_worth_it=found.not_worth_it if found else (),
        hot_spots=found.hot_spots if found else (),
    )


def device_figures(device: DeviceSpec) -> DeviceFigures:
    """A device with its peaks: of datasheet and calibration the higher."""
    roofs = [each for each in (device.datasheet, device.calibrated) if each]

    def peaks(*rates: Mapping[str, float]) -> dict[str, float]:
        return {name: max(each.get(name, 0.0) for each in rates) for each in rates for name in each}

    matrix, bandwidth = peaks(*(each.matrix_flops_per_s for each in roofs)), device.dram_bytes_per_s
    return DeviceFigures.view(
        device,
        part=device.part_name,
        matrix_flops_per_s=matrix,
        ridge_points={name: peak / bandwidth for name, peak in matrix.items()} if bandwidth else {},
        vector_flops_per_s=peaks(*(each.vector_flops_per_s for each in roofs)),
        sources=[each.source for each in roofs],
    )


def _prediction(analysis: Accounted) -> PredictionFigures | None:
    if not analysis.predicts:
        return None
    totals = analysis.totals
    predicted, wall = totals.predicted, totals.predicted_wall
    calls = predicted.calls if predicted else 0
    return PredictionFigures.view(
        totals,
        host=HostFigures.view(wall.host, time_s=wall.host_s) if wall else None,
        extrapolated_s=predicted.extrapolated_s if predicted else None,
        typical_s=predicted.typical_s if predicted else None,
        calls=calls,
        unpredicted_calls=totals.calls - calls,
    )


def _measured_there(analysis: Accounted) -> MeasuredThere | None:
    there = analysis.there
    if there is None or there.measurement is None:
        return None
    return MeasuredThere.view(
        there.totals,
        device=analysis.measured_on,
        clock=there.measurement.clock,
        wall_samples_s=there.measurement.wall_samples_s.tolist(),
        predicted_speedup=predicted_speedup(analysis),
    )


def predicted_speedup(analysis: Accounted) -> float | None:
    """What ops took on the other device over their predicted time here, of those that have both times."""
    both = [(op.measured_there_s, op.predicted_s) for op in analysis.operations]
    known = [(there_s, here_s) for there_s, here_s in both if there_s and here_s]
    here_s = sum(here_s for _, here_s in known)
    return sum(there_s for there_s, _ in known) / here_s if here_s else None
