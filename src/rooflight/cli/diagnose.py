"""``rooflight diagnose``: what costs a step time, what helps, and what that would gain."""

from __future__ import annotations

from typing import Annotated

import typer

from rooflight.cli import completion
from rooflight.cli.analyze import MeasureOptions
from rooflight.cli.options import Output
from rooflight.cli.progress import running
from rooflight.front.options import DeviceOptions, PredictionOptions, RunOptions, TraceOptions


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
    output: Output,
) -> None:
    """Say what costs a step of TARGET time: its regime (compute, memory, communication, overhead, idle or latency), the
    causes with their evidence, what helps against each, and what that is predicted to gain, with an interval.

    What is done needlessly comes before what could be tuned. For a GPU that is not here, --predict adds times.

    \b
      rooflight diagnose train.py:make_step
      rooflight diagnose gpt2 --step train --device H100-SXM5-80GB --predict
      rooflight diagnose run.session
      rooflight diagnose trace.json.gz --json -
    """
    from rooflight.diagnosis.diagnose import diagnose as diagnosed
    from rooflight.diagnosis.tables import report_of
    from rooflight.front.sessions import predicted
    from rooflight.front.targets import analyze_target

    outputs = output.open()
    roofs, host, predictor = device.roofs(), prediction.issuing(), prediction.predictor()
    with running(outputs) as progress:
        analysis, notes = analyze_target(
            target,
            run,
            inputs=measured.inputs,
            device=device.device,
            what_if=roofs,
            measured=measured.measure,
            trace=trace,
            progress=progress,
        )
        if predictor is not None:
            progress("predicting")
            analysis = predicted(analysis, predictor, host)
        progress("looking for what costs time")
        report = report_of(analysis, diagnosed(analysis), notes=notes)
    outputs.write(report)
