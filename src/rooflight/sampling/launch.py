"""Runs the tasks of a request: on this machine's device, on all its GPUs, and on all ranks of a collective."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from rooflight.costs.operators.operator import Shape
from rooflight.records.quantity import count_of
from rooflight.sampling import profiled
from rooflight.sampling.job import Job, Keeper, Outcome
from rooflight.sampling.job import run as run_job
from rooflight.sampling.profiled import EventSampler
from rooflight.sampling.request import SamplingRequest
from rooflight.sampling.runner import Sampler, pinned
from rooflight.sampling.sweeps import Sweep
from rooflight.sampling.tasks import Task

Progress = Callable[[str], object]


def run(task: Task, request: SamplingRequest, progress: Progress) -> tuple[str, ...]:
    """Run a task. Returns a line for each thing that was done or written; on ranks after the first there is none.

    Raises ValueError for a GPU that is not there, and for a shape that cannot be where it is run by itself.
    """
    device = _device(request)
    with pinned(request.threads) if request.kind == "cpu" else nullcontext() as threads:
        if threads is not None:
            progress(f"{task.job.name} on {count_of(threads, 'thread')}")
        if task.run == "get_profiler":
            return tuple(profiled.trace(task.job, shape, device, progress=progress) for shape in task.shapes)
        if task.run == "run_function":
            return tuple(profiled.run_once(task.job, shape, device, progress=progress) for shape in task.shapes)
        outcome = _sample(task, request, device, progress)
    return () if outcome is None else (outcome.line(task.job),)


def gpus_to_spread_over(request: SamplingRequest) -> int:
    """How many GPUs a request is for: 1 where one of them is named, of a rank among others, and on a CPU."""
    if request.kind == "cpu" or request.device_num is not None or "RANK" in os.environ:
        return 1
    import torch

    return int(torch.cuda.device_count())


def _sample(task: Task, request: SamplingRequest, device: str, progress: Progress) -> Outcome | None:
    job, number = task.job, request.device_num or 0
    if task.events is not None:
        return run_job(job, task.sweep, EventSampler(device, job.dtype, task.events), number=number, progress=progress)
    if job.operator.ranks:
        with ranks(request.kind) as dist:
            sampler = Sampler(device, job.dtype, job.repeats, cold=request.cold, meet=dist.barrier)
            return run_on_ranks(job, task.sweep, sampler, dist, progress=progress)
    return run_job(
        job, task.sweep, Sampler(device, job.dtype, job.repeats, cold=request.cold), number=number, progress=progress
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


@contextmanager
def ranks(kind: str) -> Iterator[Any]:
    """torch.distributed as torchrun started it, with nccl or gloo. Raises ValueError outside torchrun."""
    import torch.distributed as dist

    if "RANK" not in os.environ:
        raise ValueError("collectives run under torchrun: torchrun --nproc-per-node 4 -m rooflight sample all_reduce")
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    try:
        yield dist
    finally:
        dist.destroy_process_group()


def run_on_ranks(job: Job, sweep: Sweep, sampler: Sampler, dist: Any, *, progress: Progress) -> Outcome | None:
    """Sample a sweep on all ranks. Returns what the first rank left, None on the others."""
    if dist.get_rank() != 0:
        while (shape := _agree(dist, job, sampler.device, None)) is not None:
            sampler.row(job.operator, shape)
        return None
    with job.store(sampler.kind) as store, Keeper(job, sweep, store, progress) as keeper:
        while (shape := _agree(dist, job, sampler.device, sweep.next(store.rows))) is not None:
            keeper.keep(sampler.row(job.operator, shape))
        return keeper.end()


def _agree(dist: Any, job: Job, device: str, shape: Shape | None) -> dict[str, int] | None:
    import torch

    names = job.operator.parameters
    values = [0] * (1 + len(names)) if shape is None else [1, *(shape[name] for name in names)]
    message = torch.tensor(values, dtype=torch.int64, device=device)
    dist.broadcast(message, src=0)
    more, *sizes = message.tolist()
    return dict(zip(names, sizes, strict=True)) if more else None


def run_on_all(arguments: Sequence[str], *, gpus: int, parts: int, part: int, progress: Progress) -> None:
    """Start ``rooflight sample`` with ``arguments`` once a GPU, each with its share of this part, and wait for all.

    A share of part p of P is part p + P i of P n: ``rooflight merge`` puts them together. Interrupted, the processes
    end at their next row. Raises RuntimeError when one of them fails.
    """
    running = []
    for number in range(gpus):
        share = ["--parts", str(parts * gpus), "--part", str(part + parts * number), "--device-num", str(number)]
        command = [sys.executable, "-m", "rooflight", "sample", *arguments, *share]
        running.append(subprocess.Popen(command))
        progress(f"GPU {number}: part {part + parts * number} of {parts * gpus}")
    try:
        codes = [process.wait() for process in running]
    except KeyboardInterrupt:
        # on a terminal they have had Ctrl-C themselves; a second one does no harm
        for process in running:
            process.send_signal(signal.SIGINT)
        for process in running:
            process.wait()
        raise
    if failed := [str(number) for number, code in enumerate(codes) if code]:
        raise RuntimeError(f"sampling failed on GPU {', '.join(failed)}: run the same command again to go on")
