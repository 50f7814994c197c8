"""Programs spread over a cluster: each request runs as ``python -m MODULE REQUEST REPLY`` in a process of its own.

A program has a GPU for itself where the cluster has any, else all the cores of a node, so that none disturbs another's
times. One that fails costs only its own reply.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rooflight.records.files import write_whole
from rooflight.records.quantity import count_of
from rooflight.sampling.executor import ray as cluster
from rooflight.sampling.executor import slurm

Progress = Callable[[str], object]

RETRIES: Final = 1  # of a program whose node died
_PERIOD_S: Final = 1.0
_PERIODS_S: Final = (0.3, 5.0)  # between questions to SLURM's controller: the first, and the longest
_GRACE_S: Final = 5.0  # until a shared folder shows what a node wrote last


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the program of request ``number`` wrote, or the reason why it wrote nothing."""

    number: int
    reply: bytes | None = None
    reason: str = ""


def on_ray(module: str, requests: Sequence[bytes], *, address: str, progress: Progress) -> Iterator[Reply]:
    """Yield the replies as they arrive. Interrupted, what runs is cancelled.

    Raises ValueError where no cluster answers, or none of its nodes gives a task anything to run on.
    """
    ray = cluster.connect(address)
    nodes = cluster.alive(ray.nodes())
    with_gpus = [node for node in nodes if node.gpus]
    cores = [node.cpus for node in nodes if node.cpus]
    if not (with_gpus or cores):
        raise ValueError(f"no node of the cluster's {len(nodes)} offers a CPU or a GPU")
    share = {"num_gpus": 1, "num_cpus": 1} if with_gpus else {"num_cpus": min(cores)}
    task = ray.remote(**share, max_retries=RETRIES)(run_program)
    under_way = {task.remote(module, request): number for number, request in enumerate(requests)}
    try:
        while under_way:
            progress(f"{len(requests) - len(under_way)} of {count_of(len(requests), 'program')}")
            done, _ = ray.wait(list(under_way), num_returns=1, timeout=_PERIOD_S)
            for each in done:
                yield _reply(ray, each, under_way.pop(each))
    finally:
        for each in under_way:
            ray.cancel(each)


def run_program(module: str, request: bytes) -> tuple[bytes | None, str]:
    """The task of Ray: the program's reply, or why there is none."""
    with tempfile.TemporaryDirectory(prefix="rooflight-program-") as folder:
        given, answer = Path(folder, "request"), Path(folder, "reply")
        given.write_bytes(request)
        done = subprocess.run(
            [sys.executable, "-m", module, str(given), str(answer)],
            env={name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},  # Ray's choice
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if answer.exists():
            return answer.read_bytes(), ""
    said = done.stderr.strip().splitlines() or ["no message"]
    return None, f"its program ended with code {done.returncode}: {said[-1]}"


def _reply(ray: Any, task: Any, number: int) -> Reply:
    try:
        reply, reason = ray.get(task)
    except ray.exceptions.RayTaskError as error:
        return Reply(number=number, reason=" ".join(str(error.cause).split()))
    except ray.exceptions.RayError as error:
        return Reply(number=number, reason=f"its task was lost: {type(error).__name__}")
    return Reply(number=number, reply=reply, reason=reason)


def on_slurm(
    module: str, requests: Sequence[bytes], *, shared: Path, partition: str | None, minutes: int, progress: Progress
) -> Iterator[Reply]:
    """Submit an array with a task per request, and yield the replies as they arrive. Interrupted, it is cancelled.

    ``shared`` is a folder that the nodes see too; ``minutes`` limits each task. Raises ValueError where there is no
    sbatch, and for more requests than an array may have, RuntimeError where sbatch refuses.
    """
    slurm.program("sbatch")
    most = slurm.largest_array()
    if most is not None and len(requests) > most:
        raise ValueError(f"{len(requests)} programs: an array has at most {most} tasks here (MaxArraySize)")
    gpus = any(node.gpus for node in slurm.nodes(partition))
    folder = Path(tempfile.mkdtemp(prefix=".rooflight-programs-", dir=shared)).resolve()
    try:
        for number, request in enumerate(requests, start=1):
            write_whole(folder / f"{number}.request", request)
        text = script(module, folder, len(requests), partition=partition, minutes=minutes, gpus=gpus)
        write_whole(folder / "job.sbatch", text)
        job = slurm.submit(folder / "job.sbatch")
        try:
            yield from _follow(job, folder, len(requests), progress)
        except BaseException:
            slurm.cancel(job)
            raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def script(module: str, folder: Path, count: int, *, partition: str | None, minutes: int, gpus: bool) -> str:
    """The job script: an array with a task per request."""
    place = shlex.quote(str(folder))
    command = shlex.join([sys.executable, "-m", module])
    return "\n".join(
        (
            "#!/bin/bash",
            f"#SBATCH --array=1-{count}",
            "#SBATCH --ntasks=1",
            *(("#SBATCH --gpus-per-task=1",) if gpus else ("#SBATCH --exclusive", "#SBATCH --mem=0")),
            *((f"#SBATCH --partition={partition}",) if partition else ()),
            f"#SBATCH --time={minutes}",
            f"#SBATCH --chdir={slurm.quoted(str(Path.cwd()))}",
            "#SBATCH --job-name=rooflight_programs",
            slurm.output(folder, "%a.out"),
            "",
            *slurm.exports(),
            f'exec {command} {place}/"$SLURM_ARRAY_TASK_ID".request {place}/"$SLURM_ARRAY_TASK_ID".reply',
            "",
        )
    )


def _follow(job: int, folder: Path, count: int, progress: Progress) -> Iterator[Reply]:
    waiting = set(range(count))
    period_s, longest_s = _PERIODS_S
    ended_s: float | None = None
    while waiting:
        if ended_s is None and not slurm.runs(job):  # before the files: what it left is there then
            ended_s = time.monotonic()
        for number in sorted(waiting):
            answer = folder / f"{number + 1}.reply"
            if answer.exists():
                waiting.discard(number)
                yield Reply(number=number, reply=answer.read_bytes())
        if ended_s is not None and time.monotonic() - ended_s > _GRACE_S:
            break
        if waiting:
            progress(f"job {job}: {count - len(waiting)} of {count_of(count, 'program')}")
            time.sleep(period_s)
            period_s = _PERIODS_S[0] if ended_s is not None else min(1.2 * period_s, longest_s)
    for number in sorted(waiting):
        yield Reply(number=number, reason=_last_words(folder / f"{number + 1}.out"))


def _last_words(path: Path) -> str:
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        lines = []
    said = [line for line in lines if line]
    return said[-1] if said else f"its task left no reply: does its node see {path.parent.parent}?"
