"""From a user's request to jobs that run: which operators, shapes, device and files."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rooflight.machine.presence import cuda_name
from rooflight.operators import registry
from rooflight.operators.operator import Operator
from rooflight.operators.user_file import operators_of
from rooflight.records.dtypes import dtype_name
from rooflight.sampling import estimate_train_time, lockstep, profiling
from rooflight.sampling.grids import Shapes, complete, full_grid, small_shapes
from rooflight.sampling.job import DATA, Job, Outcome
from rooflight.sampling.job import run as run_job
from rooflight.sampling.runner import Repeats, Sampler, pin
from rooflight.sampling.smart_sweep import SmartSweep
from rooflight.sampling.sweeps import PointSweep, Sweep, check_part

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_SMART_BOX_S = 1.0
_BOXES_A_BUDGET = 20
_SMART_REPEATS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRequest:
    """What a user asked for, unset options as None. ``sweep`` is "test", "collect" or "smart"."""

    operators: tuple[str, ...] = ()
    precision: str | None = None
    config: Path | None = None
    sweep: str = "smart"
    budget_s: float = 60.0
    parts: int = 1
    part: int = 1
    device_num: int | None = None
    out: Path = Path()
    threads: int | None = None
    box_s: float = 5.0
    cold: bool = True
    cpu: bool = False

    @property
    def kind(self) -> str:
        """ "cuda" where there is a GPU and the CPU was not asked for."""
        return "cpu" if self.cpu or cuda_name() is None else "cuda"

    @property
    def dtype(self) -> str:
        """torch's name of the precision. Raises ValueError for an unknown one."""
        return dtype_name(self.precision or ("bf16" if self.kind == "cuda" else "fp32"))

    def arguments(self) -> list[str]:
        """The command line of this request, without what says which part and device."""
        words = [*self.operators, "--out", str(self.out), "--time-box", f"{self.box_s:g}"]
        if self.config is not None:
            words += ["--config", str(self.config)]
        else:
            words += ["--sweep", self.sweep, "--budget", f"{self.budget_s:g}s"]
        words += ["--precision", self.precision] if self.precision else []
        words += ["--threads", str(self.threads)] if self.threads else []
        words += ["--cpu"] if self.cpu else []
        return words + ([] if self.cold else ["--warm-cache"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A job, its sweep, and the page's run mode."""

    job: Job
    sweep: Sweep
    run: str = "get_all"
    shapes: tuple[dict[str, int], ...] = ()


def seconds(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``5m`` or ``2h``. Raises ValueError for anything else, and for 0."""
    unit = _UNITS.get(text[-1:])
    try:
        found = float(text[:-1]) * unit if unit else float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise ValueError(f'"{text}" is no time: write 90s, 5m or 2h')
    return found


def tasks(request: SamplingRequest) -> tuple[Task, ...]:
    """The jobs that a request asks for. Raises ValueError for unknown operators, configs and parts."""
    check_part(request.parts, request.part)
    if not request.box_s > 0:
        raise ValueError("--time-box must be more than 0 seconds")
    if request.config is not None:
        return (_configured(request, estimate_train_time.load(request.config)),)
    found = [operator for word in dict.fromkeys(request.operators) for operator in operators_of(word)]
    if request.sweep == "smart":
        return _smart(request, found or [operator for operator in registry.every() if operator.smart_share])
    points = small_shapes if request.sweep == "test" else full_grid
    return tuple(
        Task(
            job=_job(request, operator, Repeats(box_s=request.box_s)),
            sweep=PointSweep(points(operator), parts=request.parts, part=request.part),
        )
        for operator in found or [operator for operator in registry.every() if not operator.ranks]
    )


def run(task: Task, request: SamplingRequest, tell: Callable[[str], object]) -> Outcome | None:
    """Run a task on this machine's device; None where nothing is kept (other ranks, a single run).

    Raises ValueError for a GPU that is not there.
    """
    job, device = task.job, _device(request)
    if request.kind == "cpu":
        threads = pin(request.threads)
        tell(f"{job.name} on {threads} threads")
    if task.run == "get_profiler":
        path = job.out / DATA / f"{job.name}_{job.precision}_trace.json"
        for shape in task.shapes:
            profiling.trace(
                job.operator, shape, job.dtype, device, warmups=job.repeats.warmups, active=job.repeats.least, path=path
            )
        return None
    if task.run == "run_function":
        for shape in task.shapes:
            profiling.run_once(job.operator, shape, job.dtype, device)
        return None
    if job.operator.ranks:
        with lockstep.ranks(request.kind) as dist:
            sampler = Sampler(device, job.dtype, job.repeats, cold=request.cold, meet=dist.barrier)
            return lockstep.run(job, task.sweep, sampler, dist, tell=tell)
    sampler = Sampler(device, job.dtype, job.repeats, cold=request.cold)
    return run_job(job, task.sweep, sampler, number=request.device_num or 0, tell=tell)


def spread_over_gpus(request: SamplingRequest) -> bool:
    """Whether a request is for several GPUs at once: no one of them named, and no rank among others."""
    if request.kind == "cpu" or request.device_num is not None or "RANK" in os.environ:
        return False
    import torch

    return torch.cuda.device_count() > 1


def _smart(request: SamplingRequest, operators: list[Operator]) -> tuple[Task, ...]:
    """Each operator's share of the budget, weighed where nobody named operators."""
    weights = [1 if request.operators else operator.smart_share for operator in operators]
    found = []
    for operator, weight in zip(operators, weights, strict=True):
        share_s = request.budget_s * weight / sum(weights)
        box_s = min(request.box_s, max(_SMART_BOX_S, share_s / _BOXES_A_BUDGET))
        sweep = SmartSweep(
            operator, request.dtype, budget_s=share_s, kind=request.kind, parts=request.parts, part=request.part
        )
        found.append(Task(job=_job(request, operator, Repeats(least=_SMART_REPEATS, box_s=box_s)), sweep=sweep))
    return tuple(found)


def _configured(request: SamplingRequest, config: estimate_train_time.Config) -> Task:
    operator = config.operator
    repeats = Repeats(warmups=config.warmups, least=config.active, most=max(config.active, 10), box_s=request.box_s)
    shapes = tuple(complete(operator, shape) for shape in config.shapes)
    if config.run != "get_all" and not shapes:
        raise ValueError(f"{request.config}: run {config.run} needs shapes")
    points = config.grid if config.run == "get_all" else Shapes(operator, shapes)
    warmup = config.warmup_shape
    return Task(
        job=_job(
            request,
            operator,
            repeats,
            kernel=config.kernel,
            columns=config.columns,
            warmup_shape=None if warmup is None or operator.ranks else complete(operator, warmup),
        ),
        sweep=PointSweep(points, parts=request.parts, part=request.part),
        run=config.run,
        shapes=shapes,
    )


def _job(
    request: SamplingRequest,
    operator: Operator,
    repeats: Repeats,
    *,
    kernel: str = "",
    columns: tuple[tuple[str, str], ...] = (),
    warmup_shape: dict[str, int] | None = None,
) -> Job:
    timing = {
        "cache": "cold" if request.cold else "warm",
        "clock": "device events" if request.kind == "cuda" else "steady clock",
        "least samples": str(repeats.least),
        "spread wanted": f"{repeats.spread:g}",
    }
    return Job(
        operator=operator,
        dtype=request.dtype,
        out=request.out,
        kernel=kernel,
        columns=columns,
        parts=request.parts,
        part=request.part,
        repeats=repeats,
        timing=timing,
        warmup_shape=warmup_shape,
    )


def _device(request: SamplingRequest) -> str:
    if request.kind == "cpu":
        if request.device_num:
            raise ValueError(f"--device-num {request.device_num}: torch sees no GPU here")
        return "cpu"
    import torch

    number = request.device_num or int(os.environ.get("LOCAL_RANK", "0"))
    if not 0 <= number < torch.cuda.device_count():
        raise ValueError(f"--device-num {number}: torch sees GPUs 0 to {torch.cuda.device_count() - 1}")
    torch.cuda.set_device(number)
    return f"cuda:{number}"
