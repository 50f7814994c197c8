"""``rooflight sample``: time operators over sweeps of shapes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rooflight.cli import completion
from rooflight.cli.arguments import arguments_of, check_folder, refuse_unused
from rooflight.cli.choices import Executor
from rooflight.cli.endings import interrupted
from rooflight.cli.output_options import CsvFolder, HtmlFile, JsonFile, MarkdownFile, Render
from rooflight.cli.progress import spinner
from rooflight.records.quantity import count_of
from rooflight.records.visible import visible

if TYPE_CHECKING:
    from rooflight.operators.operator import Operator
    from rooflight.reporting.output import Outputs
    from rooflight.sampling.request import SamplingRequest
    from rooflight.sampling.smart_sweep import Views
    from rooflight.sampling.tasks import Task


class SweepName(StrEnum):
    """The sweeps that are shipped."""

    test = "test"
    collect = "collect"
    smart = "smart"


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
    precision: Annotated[
        str | None,
        typer.Option(
            metavar="DTYPE",
            help="fp16, bf16 or fp32. [default: bf16; fp32 on a CPU]",
            show_default=False,
            autocompletion=completion.dtypes,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "--config_path", metavar="FILE", help="A sweep's YAML file, in estimate-train-time's form."
        ),
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Show the operators, or OPERATOR, and their parameters; sample nothing.")
    ] = False,
    write_config: Annotated[
        bool,
        typer.Option(
            "--write-config",
            help="Write files for --config, of OPERATOR or of all: collect/, test/, profilers/; sample nothing.",
        ),
    ] = False,
    sweep: Annotated[
        SweepName | None,
        typer.Option(help="test: seconds; collect: the full grids; smart: until the budget is spent. [default: smart]"),
    ] = None,
    budget: Annotated[str, typer.Option(metavar="TIME", help="Time that smart may take: 90s, 5m, 2h, 1h30m.")] = "1m",
    on: Annotated[
        str | None,
        typer.Option(
            metavar="MODELS",
            help="smart: models that the rows will be added to: a folder, or shipped. [default: shipped]",
            show_default=False,
        ),
    ] = None,
    parts: Annotated[int, typer.Option(metavar="N", help="Divide the sweep into this many parts.")] = 1,
    part: Annotated[int, typer.Option(metavar="N", help="Sample this part, counted from 1.")] = 1,
    device_num: Annotated[
        int | None,
        typer.Option(
            "--device-num", "--device_num", metavar="N", help="This GPU only, from 0. [default: every visible one]"
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="Folder for sampling_data and sampling_log.", show_default="this folder"),
    ] = Path(),
    executor: Annotated[Executor, typer.Option(help="Where to run.")] = Executor.local,
    submit: Annotated[bool, typer.Option("--submit", help="slurm: submit the parts as a job array.")] = False,
    address: Annotated[str, typer.Option(metavar="HOST:PORT", help="ray: the cluster to join.")] = "auto",
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="Threads (and cores) on a CPU. [default: torch's]")
    ] = None,
    time_box: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time that one direction of one shape may take.")
    ] = 5.0,
    warm_cache: Annotated[bool, typer.Option("--warm-cache", help="Leave the caches as the last run did.")] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="Sample on the CPU even where there is a GPU.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before sweeps of millions of shapes.")] = False,
    json: JsonFile = None,
    markdown: MarkdownFile = None,
    csv: CsvFolder = None,
    html: HtmlFile = None,
    render: Render = None,
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
    from rooflight.reporting.output import Outputs
    from rooflight.sampling.launch import run_on_all, spread_over_gpus, visible_gpus
    from rooflight.sampling.request import SamplingRequest, seconds
    from rooflight.sampling.store import calibration_of

    check_folder("--out", out)
    _refuse_unused(context)
    if list_:
        outputs = Outputs(json=json, markdown=markdown, csv=csv, html=html, render=render)
        _list_operators(operators or [], outputs)
        return
    if write_config:
        _write_configs(operators or [], out)
        return
    names = list(operators or [])
    if names and names[0] in SweepName.__members__ and sweep is None:
        sweep = SweepName(names.pop(0))  # `rooflight sample smart`
    if config is not None and (names or sweep is not None):
        raise ValueError("--config names its operator and sweep: leave out OPERATOR and --sweep")
    if threads is not None and threads < 1:
        raise ValueError(f"--threads {threads}: at least 1")
    request = SamplingRequest(
        operators=tuple(names),
        precision=precision,
        config=config,
        sweep=str(sweep or SweepName.smart),
        budget_s=seconds(budget),
        parts=parts,
        part=part,
        device_num=device_num,
        out=out,
        threads=threads,
        box_s=time_box,
        cold=not warm_cache,
        cpu=cpu,
    )
    if config is not None or request.sweep != SweepName.smart:
        whole = "--config" if config is not None else f"--sweep {request.sweep}"
        refuse_unused(
            context, set(context.params) - {"budget", "on"}, f"{whole} samples all shapes; only smart chooses some"
        )
    if executor is Executor.slurm:
        _slurm(request, submit, yes, _arguments_of_part(context))
        return
    kept = f"finished rows are kept in {out / 'sampling_data'}, and the same command continues from there"
    with spinner() as progress, interrupted(kept):
        if executor is Executor.local and spread_over_gpus(request):
            run_on_all(
                _arguments_of_part(context),
                gpus=visible_gpus(),
                parts=request.parts,
                part=request.part,
                progress=progress,
            )
            return
        for line in _run(request, executor, address, on, progress, yes):
            typer.echo(visible(line))
        if executor is Executor.local and request.kind == "cpu" and not calibration_of("cpu"):
            known = "nothing is known of this CPU's speed"
            typer.echo(f"rooflight: {known}: run rooflight calibrate on this machine before rooflight fit", err=True)


def _refuse_unused(context: typer.Context) -> None:
    """Raise ValueError for options that have no effect together with the others."""
    given, outputs = context.params, {"json", "markdown", "csv", "html", "render"}
    every = set(given)
    if given["list_"]:
        refuse_unused(context, {"list_", "operators", *outputs}, "--list samples nothing")
        return
    refuse_unused(context, every - outputs, "for --list: samples are kept in sampling_data")
    if given["write_config"]:
        refuse_unused(context, {"write_config", "operators", "out"}, "--write-config samples nothing")
    if given["executor"] is not Executor.slurm:
        refuse_unused(context, every - {"submit"}, "for --executor slurm")
    if given["executor"] is not Executor.ray:
        refuse_unused(context, every - {"address"}, "for --executor ray")
    else:
        refuse_unused(context, every - {"threads"}, "the workers of Ray have the threads that Ray gives them")
    if given["executor"] is not Executor.local:
        refuse_unused(context, every - {"device_num"}, "a cluster chooses its GPUs itself")


def _arguments_of_part(context: typer.Context) -> list[str]:
    """Arguments of a process that runs a part of this command on this machine, but for its part and device."""
    return arguments_of(context, executor=Executor.local, submit=False, parts=1, part=1, device_num=None)


def _run(
    request: SamplingRequest,
    executor: Executor,
    address: str,
    on: str | None,
    progress: Callable[[str], None],
    yes: bool,
) -> Iterator[str]:
    """Run the request; yields a line for each thing that was done or written."""
    from rooflight.sampling import launch
    from rooflight.sampling.tasks import tasks as tasks_of

    tasks = tasks_of(request, _views(request, on) if executor is Executor.local else None)
    for task in tasks:
        _ask(task, yes)
    for task in tasks:
        progress(task.job.name)
        if executor is Executor.ray:
            from rooflight.sampling import ray_sweep as ray

            if task.events is not None or task.run in ("get_profiler", "run_function"):
                raise ValueError(f"{request.config}: a cluster of Ray samples operators only: use --executor local")
            for outcome in ray.run(task.job, task.sweep, address=address, cold=request.cold, progress=progress):
                yield outcome.line(task.job)
        else:
            yield from launch.run(task, request, progress)


def _views(request: SamplingRequest, on: str | None) -> Callable[[Operator, str], Views] | None:
    """What the models that rows will be added to answer of shapes here; None where they cannot tell."""
    if request.sweep != SweepName.smart or request.config is not None:
        return None
    from rooflight.front.views import views_here
    from rooflight.prediction.fit.base import SHIPPED_NAME, base_of
    from rooflight.prediction.predictor import Predictor

    return views_here(Predictor.load(base_of(on or SHIPPED_NAME)), request.kind, request.threads)


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


def _slurm(request: SamplingRequest, submit: bool, yes: bool, arguments: list[str]) -> None:
    """Write the job script, or submit an array. Work that no node can run is refused here, not hours later in a log."""
    from rooflight.sampling import slurm_jobs as slurm
    from rooflight.sampling.tasks import tasks

    parts = request.parts if request.parts > 1 else slurm.PARTS
    for task in tasks(replace(request, parts=parts, part=1)):
        if task.job.operator.ranks:
            raise ValueError(f"{task.job.name} needs several ranks: srun torchrun -m rooflight sample {task.job.name}")
        _ask(task, yes)
    script = slurm.Script(
        arguments=arguments if yes else [*arguments, "--yes"],  # the user was asked here, and cannot be asked there
        out=request.out,
        folder=Path.cwd(),
        parts=parts,
        cpu=request.cpu,
        threads=request.threads,
    )
    path = request.out / "kernel_sampling.sbatch"
    if submit:
        typer.echo(visible(slurm.submit(script, path)))
    else:
        typer.echo(visible(f"{slurm.write(script, path)}: submit it with sbatch, then rooflight merge"))


def _write_configs(names: list[str], out: Path) -> None:
    from rooflight.operators import registry
    from rooflight.operators.registry import operators_of
    from rooflight.sampling.estimate_train_time import FOLDERS, write

    found = [operator for name in dict.fromkeys(names) for operator in operators_of(name)]
    paths = write(found or registry.every(), out)
    folders = ", ".join(str(out / folder) for folder in FOLDERS)
    typer.echo(visible(f"{count_of(len(paths), 'file')} in {folders}: rooflight sample --config {paths[0]}"))


def _list_operators(names: list[str], outputs: Outputs) -> None:
    from rooflight.operators import registry
    from rooflight.operators.tables import report_of

    outputs.write(report_of(map(registry.find, dict.fromkeys(names) or registry.names())))
