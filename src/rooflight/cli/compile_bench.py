"""``rooflight compile-bench``: does torch.compile pay, and from when on?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from rooflight.cli import completion
from rooflight.cli.endings import Interrupted, tell
from rooflight.cli.options import Output, refuse, refuse_elsewhere
from rooflight.cli.progress import running
from rooflight.records.options import Option
from rooflight.sampling.executor.options import PartitionOptions
from rooflight.studies.compiling.options import BenchOptions, GainOptions, Options

if TYPE_CHECKING:
    from rooflight.reporting.output import Outputs
    from rooflight.studies.compiling.bench.benchmark import Matrix

QUICK = (20, 3)
_ONE = "leave one of the two out"
_ONLY_RUNS = {"executor", "address", "partition", "limit_s", "dynamic", "bounds"}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickOptions(BenchOptions):
    """The options of a benchmark, and a short form of two."""

    quick: Annotated[bool, Option(f"{QUICK[0]} iterations, {QUICK[1]} of them warm-up.")] = False


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
    *,
    step: Options,
    program: QuickOptions,
    gain: GainOptions,
    where: PartitionOptions,
    output: Output,
) -> None:
    """Run each TARGET eager and under torch.compile, and say whether compiling pays, from which iteration on, and
    whether the compiled program is right.

    TARGET is a workload (simple-matmul-chain, mlp-training-step, attention-block, mixed-operations), or what rooflight
    analyze takes. The forward of a step's model is compiled, or the whole step if it has none. get_inputs() of the file
    returns the arguments of a function that takes some, or yields several in turn.

    Each program runs in a fresh process: eager; compiled from an empty cache of Inductor's, then from the full one; and
    beside the eager program and a float64 run, to compare results. The report has the stages of compiling, graph breaks
    and recompiles as torch logs them. --executor ray or slurm runs each target and mode as a task.

    --predict-only predicts speed-up, time of compiling, break-even and verdict for this machine or any --device,
    without compiling.

    \b
      rooflight compile-bench --quick
      rooflight compile-bench attention-block --mode default --mode max-autotune
      rooflight compile-bench gpt2 --small --step train --iterations 50
      rooflight compile-bench path/to/train.py:make_step --json -
      rooflight compile-bench gpt2 llama-3.1-8b --mode default --executor slurm
      rooflight compile-bench --predict-only --device H100-SXM5-80GB problem.py
    """
    from rooflight.studies.compiling.bench.benchmark import Matrix
    from rooflight.studies.compiling.workloads import WORKLOADS

    refuse_elsewhere(context, where.executor)
    outputs = output.open()
    if program.quick:
        refuse(context, ("iterations", "warmup"), f"--quick sets it: {_ONE}")
    how = asdict(program)
    if how.pop("quick"):
        how |= {"iterations": QUICK[0], "warmup": QUICK[1]}
    matrix = Matrix(targets=tuple(target or WORKLOADS), options=step, **how)
    if gain.predict_only:
        refuse(context, _ONLY_RUNS, f"no effect with --predict-only, which runs nothing: {_ONE}")
        _predict(matrix, gain, outputs)
    else:
        why = "only a prediction takes it, and the programs run here: add --predict-only, or leave it out"
        refuse(context, ("device", "host"), why)
        _benchmark(matrix, where, outputs)


def _benchmark(matrix: Matrix, where: PartitionOptions, outputs: Outputs) -> None:
    from rooflight.studies.compiling.bench.benchmark import BenchmarkInterrupted
    from rooflight.studies.compiling.bench.matrix import benchmark_matrix
    from rooflight.studies.compiling.bench.tables import report_of

    matrix.check()
    tell(_plan(matrix, where.executor))
    try:
        with running(outputs) as progress:
            found = benchmark_matrix(matrix, **asdict(where), progress=progress)
    except BenchmarkInterrupted as stop:
        if stop.results:
            outputs.write(report_of(stop.results))
            raise Interrupted("the report has what was measured") from stop
        raise
    outputs.write(report_of(found))


def _plan(matrix: Matrix, executor: str) -> str:
    from rooflight.records.quantity import count_of
    from rooflight.studies.compiling.bench.benchmark import programs_of

    asked = f"{count_of(len(matrix.targets), 'target')} in {count_of(len(matrix.modes), 'mode')}"
    each = f"{count_of(matrix.iterations, 'iteration')} and at most {matrix.limit_s:g} s each"
    fewer = f" (--quick: {QUICK[0]} iterations)" if matrix.iterations > QUICK[0] else ""
    if executor != "local":
        tasks = f"{count_of(len(matrix.cells), 'task')} of {programs_of(1, 1)} programs"
        return f"{asked}: {tasks}, {each}{fewer}"
    count = programs_of(len(matrix.targets), len(matrix.modes))
    return (
        f"{asked}: {count} programs, one after the other, each in a fresh process: eager, compiled from an empty "
        f"cache, compiled from the full one, compared with eager; {each}{fewer}"
    )


def _predict(matrix: Matrix, gain: GainOptions, outputs: Outputs) -> None:
    from rooflight.roofline.host import Host
    from rooflight.studies.compiling.bench.predicted import predict, report_of

    given = None if gain.host is None else Host.of(gain.host, source="--host")
    with running(outputs) as progress:
        found = predict(matrix, device=gain.device, host=given, progress=progress)
    outputs.write(report_of(found))
