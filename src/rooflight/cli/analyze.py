"""``rooflight analyze``: record a step, bound it, measure it, report it."""

from __future__ import annotations

import sys
from contextlib import nullcontext, redirect_stdout
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rooflight.cli import completion
from rooflight.cli.compile_options import Inputs
from rooflight.cli.output_options import CsvFolder, HtmlFile, JsonFile, MarkdownFile, Render
from rooflight.cli.progress import spinner
from rooflight.cli.what_if_options import Clock, Precision, what_if

if TYPE_CHECKING:
    from rooflight.prediction.predictor import Predictor
    from rooflight.roofline.host import Host


class ReadWhere(StrEnum):
    """Where traces are read: in processes of this machine, or as tasks of a Ray cluster."""

    local = "local"
    ray = "ray"


def analyze(
    target: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET",
            autocompletion=completion.presets,
            help="Preset (see: rooflight presets), config.json, train.py:function, problem.py, or a session per rank.",
        ),
    ],
    inputs: Inputs = None,
    mode: Annotated[
        str | None, typer.Option(metavar="MODE", help="forward, train, prefill or decode. [default: forward]")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(metavar="N", help="Sequences or images per step. [default: the preset's]")
    ] = None,
    seq: Annotated[int | None, typer.Option(metavar="N", help="Tokens per sequence. [default: the preset's]")] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="DTYPE", autocompletion=completion.dtypes, help="fp32, bf16, fp16. [default: bf16; fp32 on a CPU]"
        ),
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option(metavar="NAME", help="adamw, adamw-fused, sgd or none. [default: adamw]")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            autocompletion=completion.devices,
            help="Bound for this device (see: rooflight devices). [default: this machine]",
        ),
    ] = None,
    precision: Precision = None,
    clock: Clock = None,
    measure: Annotated[
        bool | None,
        typer.Option(
            "--measure/--no-measure", help="Run and time the step too. [default: if the device is in this machine]"
        ),
    ] = None,
    small: Annotated[bool, typer.Option("--small", help="The preset's architecture in a size for a laptop.")] = False,
    predict: Annotated[bool, typer.Option("--predict", help="Predict the step's time too, for any device.")] = False,
    models: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Predict, with the models that rooflight fit wrote to this folder. [default: shipped]",
        ),
    ] = None,
    capture: Annotated[
        Path | None,
        typer.Option(metavar="TRACE", help="Of a trace: that of the capture of the graphs that were replayed."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="CONFIG",
            autocompletion=completion.presets,
            help="Of a trace of vLLM or SGLang: the model's config.json, or a preset.",
        ),
    ] = None,
    execution_trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Of a trace: what ExecutionTraceObserver wrote of the run."),
    ] = None,
    host: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="Predict, with a host that takes so long per launch (6e-6 to 17e-6 were measured)."
        ),
    ] = None,
    graph: Annotated[
        bool, typer.Option("--graph", help="Predict the step as replayed from a CUDA graph: the host launches once.")
    ] = False,
    executor: Annotated[ReadWhere, typer.Option(help="Where traces of several ranks are read.")] = ReadWhere.local,
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="ray: the cluster to join. [default: this machine's]")
    ] = None,
    top: Annotated[int, typer.Option(metavar="N", help="Rows of the long tables.")] = 10,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Save the session to this file.")] = None,
    json: JsonFile = None,
    markdown: MarkdownFile = None,
    csv: CsvFolder = None,
    html: HtmlFile = None,
    render: Render = None,
) -> None:
    """Record every operation of a step of TARGET, bound it for a device, measure it, and say how far it is from
    the speed of light.

    TARGET is a preset (gpt2, llama-3.1-8b, ...; rooflight presets lists them), a transformers config.json, a function
    of your own (path/to/train.py:make_step), a problem in KernelBench's form (path/to/problem.py with Model, get_inputs
    and get_init_inputs), or a saved session.

    A function of your own is called without arguments. If it returns a callable, or that and its model, this is the
    step; if it returns tensors, numbers or nothing, it is the step itself. So is a function or module that takes
    arguments: get_inputs() of the same file, or the function that --inputs names, returns them.

    Several saved sessions or traces, or a folder of traces, are the ranks of one run: the report names the slowest, by
    how much they differ, and who waits for whom.

    --predict adds the predicted time of the step, with an interval, beside its bound: learned from measurements of
    such operations, never below the bound. It is given twice: the device's time alone, and the wall time with a host
    that issues one op after the other, --host SECONDS per launch; --graph has it replayed from a CUDA graph.

    TARGET can also be a trace that torch.profiler exported (trace.json.gz). If graphs were replayed in it, --capture
    takes the trace of their capture: kernels of a replay then belong to the ops that were captured. --model tells what
    ops of serving engines leave out: an expert's width, the experts of a token, windows of attention. --execution-trace
    takes the execution trace of the run, which makes the fused and the program bound exact.

    --precision and --clock bound the step with other roofs of the device: products in fewer bits than those of the
    program, a locked clock. The report names them.

    \b
      rooflight analyze gpt2
      rooflight analyze llama-3.1-405b --device H100-SXM5-80GB --mode train
      rooflight analyze path/to/train.py:make_step --save run.session
      rooflight analyze path/to/problem.py --device B200-SXM
      rooflight analyze run.session --device B200-SXM --json -
      rooflight analyze gpt2 --mode train --device A100-SXM4-80GB --predict
      rooflight analyze gpt2 --mode decode --device H100-SXM5-80GB --host 6e-6
      rooflight analyze run.session --device H100-SXM5-80GB --precision fp8
      rooflight analyze decode.json.gz --capture capture.json.gz --model conf.json
      rooflight analyze rank0.session rank1.session
      rooflight analyze folder/of/traces --executor ray
    """
    from rooflight.front.rank_traces import ReadOn, is_folder_of_traces, only_trace_in
    from rooflight.front.sessions import analyze_ranks, predicted
    from rooflight.front.sources import TraceOptions
    from rooflight.front.targets import RunOptions, analyze_target
    from rooflight.reporting.output import Outputs
    from rooflight.roofline.ranks import ranks_report
    from rooflight.roofline.tables.report import report_of

    outputs = Outputs(json=json, markdown=markdown, csv=csv, html=html, render=render, others={"--save": save})
    if top < 1:
        raise ValueError(f"--top {top}: ask for at least 1 row")
    notes = []
    if len(target) == 1 and is_folder_of_traces(target[0]) and (alone := only_trace_in(target[0])) is not None:
        target, notes = [alone], [f"Of {target[0]} the only trace was taken: {Path(alone).name}."]
    several = len(target) > 1 or is_folder_of_traces(target[0])
    if several and save is not None:
        raise ValueError("--save: a file has one session, and each rank has its own: save them one by one")
    if several and measure is not None:
        raise ValueError(f"--{'' if measure else 'no-'}measure: no effect, saved sessions cannot run again")
    if several and inputs is not None:
        raise ValueError(f"--inputs {inputs}: no effect, saved sessions cannot run again")
    if several and (capture is not None or execution_trace is not None):
        raise ValueError("--capture, --execution-trace: no effect on several targets: each rank has one of its own")
    if not several and (executor is not ReadWhere.local or address is not None):
        raise ValueError("--executor, --address: no effect on one file: give a folder of traces, or one per rank")
    if address is not None and executor is ReadWhere.local:
        raise ValueError("--address: no effect without --executor ray")
    beside = TraceOptions(capture=capture, model=model, execution_trace=execution_trace)
    supposed = what_if(precision, clock)
    issuing = _host(host, graph=graph)
    predictor = _predictor(models) if predict or models is not None or issuing is not None else None
    options = RunOptions(mode=mode, batch=batch, seq=seq, dtype=dtype, optimizer=optimizer, small=small)
    # the output of the recorded program must not get into a report on standard output, which another program reads
    aside = redirect_stdout(sys.stderr) if outputs.to_stdout else nullcontext()
    with spinner() as progress, aside:
        if several:
            options.refuse("saved sessions cannot run with other options")
            ranked = analyze_ranks(
                target,
                device,
                what_if=supposed,
                predictor=predictor,
                host=issuing,
                model=model,
                read_on=ReadOn(executor=executor.value, address=address or "auto"),
                progress=progress,
            )
            report = ranks_report(ranked, top=top)
        else:
            analysis, told = analyze_target(
                target[0],
                options,
                inputs=inputs,
                device=device,
                what_if=supposed,
                measured=measure,
                trace=beside,
                progress=progress,
            )
            if save is not None:
                progress(f"saving {save}")
                analysis.session.save(save)
            if predictor is not None:
                progress("predicting")
                analysis = predicted(analysis, predictor, issuing)
            progress("writing the report")
            report = report_of(analysis, top=top, notes=[*notes, *told])
    outputs.write(report)


def _host(seconds: float | None, *, graph: bool) -> Host | None:
    """The host that a wall time is to assume, None for a typical one. Raises ValueError for two, or a time below 0."""
    from rooflight.roofline.host import Host

    if graph and seconds is not None:
        raise ValueError("--graph: its host launches once, so that --host has no effect: give one of the two")
    if graph:
        return Host.of_graph()
    return None if seconds is None else Host.of(seconds, source="--host")


def _predictor(models: Path | None) -> Predictor:
    """The models in a folder, or those that come with Rooflight. Raises ValueError if the folder has none."""
    from rooflight.prediction.predictor import Predictor

    return Predictor.load(models) if models else Predictor()
