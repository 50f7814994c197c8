"""``rooflight diagnose``: what costs a step time, what helps, and what that would gain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from rooflight.cli import completion
from rooflight.cli.analyze import Asked, MeasureOptions
from rooflight.cli.options import Output
from rooflight.cli.progress import running
from rooflight.front.options import DeviceOptions, PredictionOptions, RunOptions, TraceOptions
from rooflight.records.options import Option

if TYPE_CHECKING:
    from rooflight.hardware.devices.spec import DeviceSpec
    from rooflight.roofline.analysis import Analysis
    from rooflight.roofline.findings import Applied, Finding, Scaling


@dataclass(frozen=True, slots=True, kw_only=True)
class TryOptions:
    """Runs that are made to be sure."""

    panel: ClassVar = "Experiments"
    apply: Annotated[
        int, Option("Try the first N remedies that need no change of the program on a copy of the step.", "N", least=0)
    ] = 0
    double: Annotated[bool, Option("Run a preset or config with twice its batch, too: overhead stays.")] = False
    instead: Annotated[
        str | None, Option("Predict the step for these GPUs, too, separated by commas.", "NAME[,NAME]", names="devices")
    ] = None


def diagnose(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            autocompletion=completion.presets,
            help="What analyze takes: train.py:make_step, a preset, config.json, problem.py, a session or a trace.",
        ),
    ],
    run: RunOptions,
    measured: MeasureOptions,
    device: DeviceOptions,
    prediction: PredictionOptions,
    trace: TraceOptions,
    trying: TryOptions,
    output: Output,
) -> None:
    """Say what costs a step of TARGET time: its regime (compute, memory, communication, overhead, idle or latency), the
    causes with their evidence, what helps against each, and what that is predicted to gain, with an interval.

    What is done needlessly comes before what could be tuned. For a GPU that is not here, --predict adds times.
    --apply tries remedies, and shows predicted beside measured gains; --double tells overhead from work; --instead adds
    what the step would gain on other GPUs.

    \b
      rooflight diagnose train.py:make_step
      rooflight diagnose train.py:make_step --apply 2
      rooflight diagnose gpt2 --step train --device H100-SXM5-80GB --predict
      rooflight diagnose run.session --instead A100-SXM4-80GB,H100-SXM5-80GB
      rooflight diagnose trace.json.gz --json -
    """
    from rooflight.diagnosis.diagnose import diagnose as diagnosed
    from rooflight.diagnosis.remedies.devices import with_devices
    from rooflight.diagnosis.tables import report_of
    from rooflight.front.device import find_device

    outputs = output.open()
    of_user = is_function(target)
    if trying.apply and not of_user:
        raise ValueError(f"--apply {trying.apply}: remedies are tried on a function of yours (train.py:make_step)")
    if trying.double and (of_user or Path(target).suffix == ".session"):
        raise ValueError("--double: only a preset or config has a batch that Rooflight sets: double yours, and compare")
    others = [find_device(each.strip()) for each in trying.instead.split(",")] if trying.instead else []
    if others and device.device:  # a bound here is not compared with a prediction there
        prediction = replace(prediction, predict=True)
    asked = Asked(targets=[target], run=run, device=device, prediction=prediction, trace=trace, top=10)
    with running(outputs) as progress:
        analysis, notes = asked.analysis(measured, progress)
        progress("looking for what costs time")
        found = with_devices(diagnosed(analysis), analysis.account, _instead(asked, measured, others, progress))
        applied = tuple(_applied(target, measured, found.findings, trying.apply, progress))
        scaling = _scaling(asked, measured, analysis, progress) if trying.double else None
        report = report_of(analysis, found, applied, scaling, notes)
    outputs.write(report)


def is_function(target: str) -> bool:
    """Whether a target names a function of a file: ``train.py:make_step``."""
    return target.rpartition(":")[0].endswith(".py")


def _applied(
    target: str, measured: MeasureOptions, findings: Sequence[Finding], most: int, progress: Callable[[str], None]
) -> Iterable[Applied]:
    if most:
        from rooflight.front.applied import applied

        yield from applied(target, measured.inputs, findings, most, progress)


def _instead(
    asked: Asked, measured: MeasureOptions, devices: Sequence[DeviceSpec], progress: Callable[[str], None]
) -> Iterable[Analysis]:
    """The same target predicted for other devices."""
    for device in devices:
        progress(f"predicting for {device.name}")
        there = replace(asked.device, device=device.name)
        elsewhere = replace(asked, device=there, prediction=replace(asked.prediction, predict=True))
        yield elsewhere.analysis(replace(measured, measure=False), progress)[0]


def _scaling(
    asked: Asked, measured: MeasureOptions, analysis: Analysis, progress: Callable[[str], None]
) -> Scaling | None:
    """The same target with twice the batch; None where the step has none, or its time is not known."""
    from rooflight.roofline.findings import Scaling
    from rooflight.sources.workloads.targets import open_target

    batch = asked.run.batch or open_target(asked.targets[0], step=asked.run.step, small=asked.run.small).batch
    if batch is None:
        return None
    progress("doubling the batch")
    doubled, _ = replace(asked, run=replace(asked.run, batch=2 * batch)).analysis(measured, progress)
    before, after = (_seconds(each) for each in (analysis, doubled))
    if not before or not after:
        return None
    return Scaling(work=doubled.totals.op_bound_s / analysis.totals.op_bound_s, time=after / before)


def _seconds(analysis: Analysis) -> float | None:
    wall = analysis.totals.predicted_wall
    return analysis.totals.measured_s or (wall.time_s if wall else None)
