"""``rooflight compile-bench``: does torch.compile pay, and from when on?"""

from __future__ import annotations

import sys
from contextlib import nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Annotated

import typer

from rooflight.cli import completion
from rooflight.cli.arguments import refuse_unused
from rooflight.cli.choices import Executor
from rooflight.cli.compile_options import Backend, Batch, Dynamic, Inputs, Limit, Seq, Small, Step, Threads
from rooflight.cli.endings import Interrupted, tell
from rooflight.cli.output_options import CsvFolder, HtmlFile, JsonFile, MarkdownFile, Render
from rooflight.cli.progress import spinner

if TYPE_CHECKING:
    from rooflight.compiling.bench.matrix import Matrix
    from rooflight.reporting.output import Outputs

QUICK = (20, 3)
_ONE = "leave one of the two out"
_ONLY_RUNS = {"executor", "address", "partition", "limit", "dynamic", "bounds"}


def compile_bench(
    context: typer.Context,
    target: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TARGET",
            autocompletion=completion.presets,
            help="Workload, preset, config.json, file.py:function or problem.py. [default: the four workloads]",
        ),
    ] = None,
    inputs: Inputs = None,
    iterations: Annotated[
        int | None, typer.Option(metavar="N", help="Iterations of each program. [default: 100]")
    ] = None,
    warmup: Annotated[
        int | None, typer.Option(metavar="N", help="Of these, how many are no steady state. [default: 5]")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="20 iterations, 3 of them warm-up.")] = False,
    compile_mode: Annotated[
        list[str] | None,
        typer.Option(
            "--mode", metavar="MODE", help="default, reduce-overhead, max-autotune, aot-inductor: repeatable."
        ),
    ] = None,
    backend: Backend = "inductor",
    dynamic: Dynamic = None,
    step: Step = None,
    batch: Batch = None,
    seq: Seq = None,
    small: Small = False,
    threads: Threads = None,
    limit: Limit = 600.0,
    predict_only: Annotated[
        bool, typer.Option("--predict-only", help="Predict what compiling would bring; compile and time nothing.")
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            autocompletion=completion.devices,
            help="Predict for this device (see: rooflight devices). [default: this machine]",
        ),
    ] = None,
    host: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Predict with a host that takes so long per launch. [default: typical]"),
    ] = None,
    bounds: Annotated[
        bool, typer.Option("--bounds/--no-bounds", help="Put the op and fused bound beside the times.")
    ] = True,
    executor: Annotated[
        Executor, typer.Option(help="Where to run: on a cluster, a task per target and mode.")
    ] = Executor.local,
    address: Annotated[str, typer.Option(metavar="HOST:PORT", help="ray: the cluster to join.")] = "auto",
    partition: Annotated[
        str | None, typer.Option(metavar="NAME", help="slurm: nodes of this partition. [default: SLURM's]")
    ] = None,
    json: JsonFile = None,
    markdown: MarkdownFile = None,
    csv: CsvFolder = None,
    html: HtmlFile = None,
    render: Render = None,
) -> None:
    """Run each TARGET eager and under torch.compile, and say whether compiling pays, from which iteration on, and
    whether the compiled program is right.

    TARGET is a workload (simple-matmul-chain, mlp-training-step, attention-block, mixed-operations), or what rooflight
    analyze takes: a preset, a config.json, a function of your own that makes a step or is the step, a problem file. A
    step with a model has its model's forward compiled; one without a model is compiled whole. A function that takes
    arguments is called with those that get_inputs() of the same file returns, in turn if it yields several. Where the
    result of a function that is the step requires grad, gradients are computed too.

    Each program runs in a fresh process: eager; compiled from an empty cache of Inductor's; compiled from the cache
    that this filled; and once more beside the eager program and a float64 run, to compare results. The report splits
    the time of compiling into stages, and gives graph breaks and recompiles as torch logs them. --mode aot-inductor
    exports the model, compiles it into an AOTInductor package, loads and runs that.

    With --executor ray or slurm each target and mode is a task on a cluster. One that fails costs only its own row.

    --predict-only says what compiling would bring, without compiling: for this machine, or for any --device. Presets,
    configs and problems are only recorded; a function of your own runs once for that. The report has speed-up, time of
    compiling, break-even and verdict, each speed-up with an interval, and where the gain comes from.

    \b
      rooflight compile-bench --quick
      rooflight compile-bench attention-block --mode default --mode max-autotune
      rooflight compile-bench gpt2 --small --step train --iterations 50
      rooflight compile-bench path/to/train.py:make_step --json -
      rooflight compile-bench gpt2 llama-3.1-8b --mode default --executor slurm
      rooflight compile-bench --predict-only --device H100-SXM5-80GB problem.py
    """
    from rooflight.compiling.bench.benchmark import BenchmarkInterrupted
    from rooflight.compiling.bench.matrix import Matrix, benchmark_matrix
    from rooflight.compiling.bench.tables import report_of
    from rooflight.compiling.bench.trial import Options
    from rooflight.compiling.workloads import WORKLOADS
    from rooflight.reporting.output import Outputs

    every = set(context.params)
    if executor is not Executor.slurm:
        refuse_unused(context, every - {"partition"}, "for --executor slurm")
    if executor is not Executor.ray:
        refuse_unused(context, every - {"address"}, "for --executor ray")
    outputs = Outputs(json=json, markdown=markdown, csv=csv, html=html, render=render)
    if quick:
        refuse_unused(context, every - {"iterations", "warmup"}, f"--quick sets it: {_ONE}")
    count, first = QUICK if quick else (100, 5)
    matrix = Matrix(
        targets=tuple(target or WORKLOADS),
        modes=tuple(compile_mode or ["default"]),
        options=Options(mode=step, batch=batch, seq=seq, small=small),
        inputs=inputs,
        iterations=count if iterations is None else iterations,
        warmup=first if warmup is None else warmup,
        backend=backend,
        dynamic=dynamic,
        threads=threads,
        limit_s=limit,
        bounds=bounds,
    )
    if predict_only:
        refuse_unused(
            context, every - _ONLY_RUNS, "no effect with --predict-only, which runs nothing: leave one of the two out"
        )
        _predict(matrix, device, host, outputs)
        return
    why = "only a prediction takes it, and the programs run here: add --predict-only, or leave it out"
    refuse_unused(context, every - {"device", "host"}, why)
    matrix.check()
    tell(_plan(matrix, executor))
    aside = redirect_stdout(sys.stderr) if outputs.to_stdout else nullcontext()
    try:
        with spinner() as progress, aside:
            found = benchmark_matrix(
                matrix, executor=executor.value, address=address, partition=partition, progress=progress
            )
    except BenchmarkInterrupted as stop:
        if stop.results:
            outputs.write(report_of(stop.results))
            raise Interrupted("the report has what was measured") from stop
        raise
    outputs.write(report_of(found))


def _plan(matrix: Matrix, executor: Executor) -> str:
    """How many programs are about to run, each for how long at most, and what runs fewer iterations."""
    from rooflight.compiling.bench.benchmark import programs_of
    from rooflight.records.quantity import count_of

    asked = f"{count_of(len(matrix.targets), 'target')} in {count_of(len(matrix.modes), 'mode')}"
    each = f"{count_of(matrix.iterations, 'iteration')} and at most {matrix.limit_s:g} s each"
    fewer = f" (--quick: {QUICK[0]} iterations)" if matrix.iterations > QUICK[0] else ""
    if executor is not Executor.local:
        tasks = f"{count_of(len(matrix.cells), 'task')} of {programs_of(1, 1)} programs"
        return f"{asked}: {tasks}, {each}{fewer}"
    count = programs_of(len(matrix.targets), len(matrix.modes))
    return (
        f"{asked}: {count} programs, one after the other, each in a fresh process: eager, compiled from an empty "
        f"cache, compiled from the full one, compared with eager; {each}{fewer}"
    )


def _predict(matrix: Matrix, device: str | None, host: float | None, outputs: Outputs) -> None:
    from rooflight.compiling.bench.predicted import PredictedCompiled, predict, report_of
    from rooflight.roofline.host import Host

    given = None if host is None else Host.of(host, source="--host")
    aside = redirect_stdout(sys.stderr) if outputs.to_stdout else nullcontext()
    found: list[PredictedCompiled] = []
    with spinner() as progress, aside:
        for each in matrix.targets:
            found += predict(
                each,
                matrix.options,
                inputs=matrix.inputs,
                modes=matrix.modes,
                iterations=matrix.iterations,
                warmup=matrix.warmup,
                backend=matrix.backend,
                threads=matrix.threads,
                device=device,
                host=given,
                progress=progress,
            )
    outputs.write(report_of(found))
