"""``rooflight sample``: time operators over sweeps of shapes; ``rooflight merge``: one table of their parts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from rooflight.cli import completion
from rooflight.cli.endings import interrupted
from rooflight.cli.options import (
    OUTPUTS,
    Output,
    arguments_of,
    check_folder,
    on_command_line,
    refuse,
    refuse_elsewhere,
)
from rooflight.cli.progress import spinner
from rooflight.records.options import Option
from rooflight.records.quantity import count_of
from rooflight.records.visible import visible
from rooflight.sampling.executor.options import ExecutorOptions
from rooflight.sampling.request import SamplingRequest, SweepName

if TYPE_CHECKING:
    from rooflight.costs.operators.operator import Operator
    from rooflight.sampling.smart_sweep import Views
    from rooflight.sampling.tasks import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleExecutor(ExecutorOptions):
    """Where to run, and whether a job is submitted."""

    submit: Annotated[bool, Option("slurm: submit the parts as a job array.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOptions(SamplingRequest):
    """A request, what the verb does instead of sampling, and what it asks before."""

    list_: Annotated[
        bool, Option("Show the operators, or OPERATOR, and their parameters; sample nothing.", flags=("--list",))
    ] = False
    write_config: Annotated[
        bool, Option("Write files for --config, of OPERATOR or of all: collect/, test/, profilers/; sample nothing.")
    ] = False
    on: Annotated[
        str | None,
        Option("smart: models that the rows will be added to: a folder, or shipped. [default: shipped]", "MODELS"),
    ] = None
    yes: Annotated[bool, Option("Do not ask before sweeps of millions of shapes.")] = False


def sample(
    context: typer.Context,
    operators: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OPERATOR",
            help="Operators, or my_ops.py:my_op. [default: common ones for smart, otherwise all]",
            autocompletion=completion.operators,
        ),
    ] = None,
    *,
    asked: SampleOptions,
    where: SampleExecutor,
    output: Output,
) -> None:
    """Time operators over sweeps of shapes: raw samples, forward and backward apart, from cold caches.

    Rows are appended one by one to sampling_data/*.jsonl, with a CSV beside it. If a sweep is stopped, the same
    command continues it. A shape that cannot run is a row with a status.

    \b
      rooflight sample --list
      rooflight sample gemm sdpa --budget 5m
      rooflight sample gemm --sweep collect --parts 4 --part 1
      rooflight sample --write-config flash_atten
      rooflight sample --config collect/flash_atten.yml --precision fp16
      rooflight sample --sweep collect gemm --executor slurm
      torchrun --nproc-per-node 4 -m rooflight sample all_reduce --sweep test
    """
    names = list(operators or [])
    check_folder("--out", asked.out)
    _refuse_unused(context, asked, where)
    if asked.list_:
        from rooflight.costs.operators import registry
        from rooflight.costs.operators.tables import report_of

        output.open().write(report_of(map(registry.find, dict.fromkeys(names) or registry.names())))
        return
    if asked.write_config:
        _write_configs(names, asked.out)
        return
    asked = _request(context, asked, names)
    part = arguments_of(context, executor="local", submit=False, parts=1, part=1, device_num=None)
    if where.executor == "slurm":
        _slurm(asked, where.submit, part)
        return
    data = asked.out / "sampling_data"
    remains = f"finished rows are kept in {data}, and the same command continues from there"
    with spinner() as progress, interrupted(remains):
        _sample(asked, where, part, progress)


def _request(context: typer.Context, asked: SampleOptions, names: list[str]) -> SampleOptions:
    given = on_command_line(context, "sweep")
    sweep = asked.sweep
    if names and not given:
        for each in get_args(SweepName):
            if names[0] == each:  # `rooflight sample smart`
                sweep, names, given = each, names[1:], True
                break
    if asked.config is not None and (names or given):
        raise ValueError("--config names its operator and sweep: leave out OPERATOR and --sweep")
    if asked.threads is not None and asked.threads < 1:
        raise ValueError(f"--threads {asked.threads}: at least 1")
    asked = replace(asked, operators=tuple(names), sweep=sweep)
    assert asked.budget_s  # refuses what is no time
    if asked.config is not None or sweep != "smart":
        whole = "--config" if asked.config is not None else f"--sweep {sweep}"
        refuse(context, ("budget", "on"), f"{whole} samples all shapes; only smart chooses some")
    return asked


def _sample(asked: SampleOptions, where: SampleExecutor, arguments: list[str], progress: Callable[[str], None]) -> None:
    from rooflight.sampling.launch import gpus_to_spread_over, run_on_all

    local = where.executor == "local"
    if local and (gpus := gpus_to_spread_over(asked)) > 1:
        run_on_all(arguments, gpus=gpus, parts=asked.parts, part=asked.part, progress=progress)
        return
    for line in _run(asked, where, progress):
        typer.echo(visible(line))


def _refuse_unused(context: typer.Context, asked: SampleOptions, where: SampleExecutor) -> None:
    every = set(context.params)
    if asked.list_:
        refuse(context, every - {"list_", "operators", *OUTPUTS}, "--list samples nothing")
        return
    refuse(context, OUTPUTS, f"only --list has a report to write; the rows go to {asked.out / 'sampling_data'}")
    if asked.write_config:
        refuse(context, every - {"write_config", "operators", "out"}, "--write-config samples nothing")
    refuse_elsewhere(context, where.executor)
    if where.executor == "ray":
        refuse(context, ("threads",), "the workers of Ray have the threads that Ray gives them")
    if where.executor != "local":
        refuse(context, ("device_num",), "a cluster chooses its GPUs itself")


def _run(asked: SampleOptions, where: SampleExecutor, progress: Callable[[str], None]) -> Iterator[str]:
    from rooflight.sampling import launch, ray_sweep
    from rooflight.sampling.store import calibration_of
    from rooflight.sampling.tasks import tasks as tasks_of

    tasks = tasks_of(asked, _views(asked) if where.executor == "local" else None)
    for task in tasks:
        _ask(task, asked.yes)
    for task in tasks:
        progress(task.job.name)
        if where.executor == "local":
            yield from launch.run(task, asked, progress)
            continue
        if task.events is not None or task.run in ("get_profiler", "run_function"):
            raise ValueError(f"{asked.config}: a cluster of Ray samples operators only: use --executor local")
        for outcome in ray_sweep.run(task.job, task.sweep, address=where.address, cold=asked.cold, progress=progress):
            yield outcome.line(task.job)
    bounded = any(task.events is None for task in tasks)  # nothing bounds a user's function
    if where.executor == "local" and asked.kind == "cpu" and bounded and not calibration_of("cpu", asked.threads):
        known = "nothing is known of this CPU's speed"
        typer.echo(f"rooflight: {known}: run rooflight calibrate on this machine before rooflight fit", err=True)


def _views(asked: SampleOptions) -> Callable[[Operator, str], Views] | None:
    """What the models that rows will be added to answer of shapes here; None where they cannot tell."""
    if asked.sweep != "smart" or asked.config is not None:
        return None
    from rooflight.front.device import known_here
    from rooflight.prediction.fit.base import SHIPPED_NAME, base_of
    from rooflight.prediction.predictor import Predictor

    predictor, device = Predictor.load(base_of(asked.on or SHIPPED_NAME)), known_here(asked.kind, asked.threads)
    if device is None:
        return None
    return lambda operator, dtype: lambda shapes: predictor.views(operator, shapes, dtype, device)


def _ask(task: Task, yes: bool) -> None:
    """A very large sweep is more often a mistake than intended: ask first."""
    from rooflight.sampling.sweeps import MANY

    total = task.sweep.total
    if total is None or total <= MANY or yes:
        return
    question = f"{task.job.name}: the sweep has {total:,} shapes"
    if not sys.stdin.isatty():
        raise ValueError(f"{question}: pass --yes to sample them all, or use --sweep smart with a --budget")
    if not typer.confirm(f"{visible(question)}. Sample them all?", err=True):
        raise RuntimeError("nothing was sampled")


def _slurm(asked: SampleOptions, submit: bool, arguments: list[str]) -> None:
    """Write the job script, or submit an array. Work that no node can run is refused here, not hours later in a log."""
    from rooflight.sampling import slurm_jobs as slurm
    from rooflight.sampling.tasks import tasks

    parts = asked.parts if asked.parts > 1 else slurm.PARTS
    for task in tasks(replace(asked, parts=parts, part=1)):
        if task.job.operator.ranks:
            raise ValueError(f"{task.job.name} needs several ranks: srun torchrun -m rooflight sample {task.job.name}")
        _ask(task, asked.yes)
    yes = [] if asked.yes else ["--yes"]  # the user was asked here, and cannot be asked there
    script = slurm.Script(
        arguments=[*arguments, *yes],
        out=asked.out,
        folder=Path.cwd(),
        parts=parts,
        cpu=asked.cpu,
        threads=asked.threads,
    )
    path = asked.out / "kernel_sampling.sbatch"
    if submit:
        for line in slurm.submit(script, path).splitlines():
            typer.echo(visible(line))
    else:
        typer.echo(visible(f"{slurm.write(script, path)}: submit it with sbatch, then rooflight merge"))


def _write_configs(names: list[str], out: Path) -> None:
    from rooflight.costs.operators import registry
    from rooflight.costs.operators.registry import operators_of
    from rooflight.sampling.estimate_train_time import FOLDERS, write

    found = [operator for name in dict.fromkeys(names) for operator in operators_of(name)]
    paths = write(found or registry.every(), out)
    folders = ", ".join(str(out / folder) for folder in FOLDERS)
    typer.echo(visible(f"{count_of(len(paths), 'file')} in {folders}: rooflight sample --config {paths[0]}"))


def merge(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="CSV or jsonl files of one operator, precision and device."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to write. [default: GPU_operator_precision.csv beside the first]"),
    ] = None,
    *,
    output: Output,
) -> None:
    """Put the parts of a sweep together: duplicate rows dropped, sorted by shape. The files themselves do not change.

    \b
      rooflight merge sampling_data/NVIDIAA100*_flash_atten_fp16_*.csv
      rooflight merge part1.jsonl part2.jsonl --out merged.csv
    """
    from rooflight.sampling.merge import merge as merge_files
    from rooflight.sampling.merge import report_of

    outputs = output.open(out=out)
    outputs.write(report_of(merge_files(files, out)))
