"""``rooflight analyze``: record a step, bound it, measure it, report it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from rooflight.cli import completion
from rooflight.cli.options import Output
from rooflight.cli.progress import running
from rooflight.cli.run_on import Spread, SpreadOptions, several_of
from rooflight.front.options import DeviceOptions, PredictionOptions, ReadOn, RunOptions, TraceOptions
from rooflight.records.options import Option

if TYPE_CHECKING:
    from rooflight.records.report import Report
    from rooflight.records.session import Session
    from rooflight.reporting.output import Outputs
    from rooflight.roofline.analysis import Analysis


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions:
    """What a target that can run is called with, and whether it is timed."""

    panel: ClassVar = "Step"
    inputs: Annotated[
        str | None, Option("Function of the file that returns the arguments. [default: get_inputs]", "NAME")
    ] = None
    measure: Annotated[
        bool | None,
        Option(
            "Run and time the step too. [default: if the device is in this machine]", flags=("--measure/--no-measure",)
        ),
    ] = None

    def refuse(self, why: str) -> None:
        """Raise ValueError if any is given."""
        if self.measure is not None:
            raise ValueError(f"--{'' if self.measure else 'no-'}measure: {why}")
        if self.inputs is not None:
            raise ValueError(f"--inputs {self.inputs}: {why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzeOutput(Output):
    """Where the report and the session go."""

    top: Annotated[int, Option("Rows of the long tables.", "N")] = 10
    save: Annotated[Path | None, Option("Save the session to this file.", "FILE")] = None
    brief: Annotated[bool, Option("Print the first screen alone.")] = False
    calibrate: Annotated[
        bool,
        Option("Measure this machine's roofs first if they are not known.", flags=("--calibrate/--no-calibrate",)),
    ] = True

    def checked(self) -> Outputs:
        """Where it goes. Raises ValueError for what cannot be."""
        if self.top < 1:
            raise ValueError(f"--top {self.top}: ask for at least 1 row")
        return self.open(save=self.save)


def analyze(
    target: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET",
            autocompletion=completion.presets,
            help="Preset (see: rooflight presets), config.json, train.py:function, problem.py, or a session per rank.",
        ),
    ],
    run: RunOptions,
    measured: MeasureOptions,
    device: DeviceOptions,
    spread: SpreadOptions,
    prediction: PredictionOptions,
    trace: TraceOptions,
    read_on: ReadOn,
    output: AnalyzeOutput,
) -> None:
    """Record every operation of a step of TARGET, bound it for a device, measure it, and say how far it is from
    the speed of light.

    TARGET is a preset, a transformers config.json, a problem in KernelBench's form, a saved session, a trace that
    torch.profiler exported, or a function of yours. The function returns the step, or the step and its model, or is
    the step itself; get_inputs() of its file returns the arguments. Several sessions or traces are the ranks of a run.

    --predict adds the predicted time, with an interval: the device's alone, and the wall time with a host that issues
    one op after the other (--host), or replays a CUDA graph (--graph).

    --device 8xNAME --parallel LAYOUT spreads a step of a preset or config over GPUs that are not here, with a virtual
    GPU for each rank; --precision mixed trains it by autocast, with float32 masters.

    \b
      rooflight analyze gpt2
      rooflight analyze llama-3.1-405b --device H100-SXM5-80GB --step train
      rooflight analyze path/to/train.py:make_step --save run.session
      rooflight analyze path/to/problem.py --device B200-SXM
      rooflight analyze run.session --device B200-SXM --precision fp8 --json -
      rooflight analyze gpt2 --step decode --device H100-SXM5-80GB --predict
      rooflight analyze decode.json.gz --capture capture.json.gz --model conf.json
      rooflight analyze rank0.session rank1.session
      rooflight analyze folder/of/traces --executor ray
      rooflight analyze snapshot.pickle run.session
      rooflight analyze gpt2 --step train --device 8xB200-SXM --parallel fsdp
      rooflight analyze gpt2 --step train --device L4,B200-SXM --price L4=0.8
    """
    from rooflight.front.device import without_calibrating
    from rooflight.front.rank_traces import is_folder_of_traces, only_trace_in
    from rooflight.front.snapshots import is_snapshot, report_of_snapshot
    from rooflight.sources.traces.file.discovery import traces_in

    outputs = output.checked()
    if (over := Spread.asked_by(target, device, spread)) is not None:
        _check(measured, trace, read_on, output, several=False)
        measured.refuse("no effect, the GPUs are not here")
        with running(outputs) as progress:
            outputs.write(over.report(run, output.save, progress))
        return
    if is_snapshot(target[0]):
        outputs.write(report_of_snapshot(target, device.device, output.top))
        return
    notes = []
    outputs.spare(path for each in target if Path(each).is_dir() for path in traces_in(Path(each)))
    if len(target) == 1 and is_folder_of_traces(target[0]) and (alone := only_trace_in(target[0])) is not None:
        target, notes = [alone], [f"Of {target[0]} the only trace was taken: {Path(alone).name}."]
    several = len(target) > 1 or is_folder_of_traces(target[0])
    _check(measured, trace, read_on, output, several=several)
    asked = Asked(targets=target, run=run, device=device, prediction=prediction, trace=trace, top=output.top,
                  price=spread.price)  # fmt: skip
    failed: list[Exception] = []
    with running(outputs) as progress, nullcontext() if output.calibrate else without_calibrating():
        report = (
            asked.of_ranks(read_on, progress)
            if several
            else asked.of_one(measured, output.save, notes, failed, progress)
        )
    if output.brief:
        from rooflight.roofline.tables.run import in_brief

        report = in_brief(report, " ".join(target))
    outputs.write(report, failed)


def _check(
    measured: MeasureOptions, trace: TraceOptions, read_on: ReadOn, output: AnalyzeOutput, *, several: bool
) -> None:
    if several:
        if output.save is not None:
            raise ValueError("--save: a file has one session, and each rank has its own: save them one by one")
        measured.refuse("no effect, saved sessions cannot run again")
        if trace.capture is not None or trace.execution_trace is not None:
            raise ValueError("--capture, --execution-trace: no effect on several targets: each rank has one of its own")
    elif read_on.executor != "local" or read_on.address is not None:
        raise ValueError("--executor, --address: no effect on one file: give a folder of traces, or one per rank")
    if read_on.address is not None and read_on.executor == "local":
        raise ValueError("--address: no effect without --executor ray")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be analysed, and how."""

    targets: list[str]
    run: RunOptions
    device: DeviceOptions
    prediction: PredictionOptions
    trace: TraceOptions
    top: int
    price: Sequence[str] = ()

    def of_ranks(self, read_on: ReadOn, progress: Callable[[str], None]) -> Report:
        """The report of all targets, which are ranks of one run."""
        from rooflight.front.sessions import analyze_ranks
        from rooflight.roofline.ranks import ranks_report

        self.run.refuse("saved sessions cannot run with other options")
        ranked = analyze_ranks(
            self.targets,
            self.device.device,
            what_if=self.device.roofs(),
            predictor=self.prediction.predictor(),
            host=self.prediction.issuing(),
            model=self.trace.model,
            read_on=read_on,
            progress=progress,
        )
        return ranks_report(ranked, top=self.top)

    def of_one(
        self,
        measured: MeasureOptions,
        save: Path | None,
        notes: list[str],
        failed: list[Exception],
        progress: Callable[[str], None],
    ) -> Report:
        """The report; why the session could not be saved is added to ``failed``."""
        from rooflight.diagnosis.diagnose import diagnose
        from rooflight.front.on_devices import prices_of, with_devices
        from rooflight.roofline.tables.report import report_of

        def saving(session: Session) -> None:
            if save is not None:
                progress(f"saving {save}")
                try:
                    session.save(save)
                except OSError as error:  # the report is still worth having
                    failed.append(error)

        devices = several_of(self.device.device or "")
        prices = prices_of(self.price, devices) if devices else {}
        if self.price and not devices:
            raise ValueError("--price: no effect on one device: name several, --device A100-SXM4-80GB,B200-SXM")
        first = replace(self, device=replace(self.device, device=devices[0].name)) if devices else self
        analysis, more = first.analysis(measured, progress, saving)
        progress("writing the report")
        report = report_of(analysis, top=self.top, notes=[*notes, *more], found=diagnose(analysis))
        return with_devices(report, analysis.session, devices, prices) if devices else report

    def analysis(
        self,
        measured: MeasureOptions,
        progress: Callable[[str], None],
        recorded: Callable[[Session], None] = lambda _: None,
    ) -> tuple[Analysis, list[str]]:
        """The only target analysed, and predicted if that is asked for; ``recorded`` gets the session before. Notes."""
        from rooflight.front.sessions import compiled_decode, predicted
        from rooflight.front.targets import analyze_target

        # before anything is recorded
        roofs, host, predictor = self.device.roofs(), self.prediction.issuing(), self.prediction.predictor()
        analysis, more = analyze_target(
            self.targets[0],
            self.run,
            inputs=measured.inputs,
            device=self.device.device,
            what_if=roofs,
            measured=measured.measure,
            trace=self.trace,
            progress=progress,
        )
        recorded(analysis.session)
        if predictor is not None:
            progress("predicting")
            analysis = predicted(analysis, predictor, host)
            more = [*more, *compiled_decode(analysis)]
        return analysis, more
