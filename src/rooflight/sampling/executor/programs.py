"""Programs: each request runs as ``python -m MODULE REQUEST REPLY`` in a process of its own, here or on a cluster.

A program writes its answer to the file REPLY. One that has several adds files beside it (``next_reply``), each seen as
soon as it is written. On a cluster a program has a GPU for itself where there is any, else all the cores of a node, or
a whole node each, so that none disturbs another's times. One that fails costs only its own reply. Interrupted, what
runs is cancelled, and what was finished was yielded.
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
from typing import Final

from rooflight.records.files import write_whole
from rooflight.records.quantity import count_of
from rooflight.sampling.executor import ray as cluster
from rooflight.sampling.executor import slurm

Progress = Callable[[str], object]

RETRIES: Final = 1  # of a program whose node died
_PERIODS_S: Final = (0.3, 5.0)  # between questions to SLURM's controller: the first, and the longest
_GRACE_S: Final = 5.0  # until a shared folder shows what a node wrote last
_SUFFIX: Final = ".reply"
_ON_A_NODE: Final = 'n=$((SLURM_NODEID + 1)); exec "${@:2}" "$1/$n.request" "$1/$n.reply" 2> "$1/$n.out"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the program of request ``number`` wrote, or the reason why it wrote nothing (more). ``node`` is the name of
    the node that it ran on, where each had a node.
    """

    number: int
    reply: bytes | None = None
    reason: str = ""
    node: str = ""


def next_reply(path: Path, number: int) -> Path:
    """The file of a program's answer ``number``, from 0, whose REPLY is ``path``."""
    return path if number == 0 else path.with_name(f"{path.stem}.{number}{_SUFFIX}")


def run_program(module: str, request: bytes) -> tuple[list[bytes], str]:
    """Run a program here: its answers, and why there is none, or no more."""
    with tempfile.TemporaryDirectory(prefix="rooflight-program-") as folder:
        given = Path(folder, "1.request")
        given.write_bytes(request)
        done = subprocess.run(
            [sys.executable, "-m", module, str(given), str(given.with_suffix(_SUFFIX))],
            env={name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},  # Ray's choice
            capture_output=True,
            text=True,
            check=False,
        )
        found = [path.read_bytes() for path in _replies(Path(folder))]
    if found and not done.returncode:
        return found, ""
    words = done.stderr.strip().splitlines() or ["no message"]
    return found, f"its program ended with code {done.returncode}: {words[-1]}"


def on_ray(
    module: str,
    requests: Sequence[bytes],
    *,
    address: str,
    nodes: Sequence[cluster.RayNode] = (),
    gpus: bool = False,
    noun: str = "program",
    progress: Progress,
) -> Iterator[Reply]:
    """Yield the replies as they arrive: of tasks wherever there is room, or with ``nodes``, of one on each of them, all
    of it, its GPUs too where ``gpus`` is set.

    Raises ValueError where no cluster answers, or none of its nodes gives a task anything to run on.
    """
    ray = cluster.connect(address)
    cpus, gpu, _ = (0.0, 0.0, 0) if nodes else cluster.a_share(cluster.alive(ray.nodes()))
    tasks = [
        cluster.Task(
            function=run_program,
            arguments=(module, request),
            cpus=nodes[number].cpus if nodes else cpus,
            gpus=nodes[number].gpus * gpus if nodes else gpu,
            node=nodes[number].id if nodes else None,
            retries=0 if nodes else RETRIES,
            about=number,
        )
        for number, request in enumerate(requests)
    ]
    left, ended = iter(tasks), 0

    def waiting() -> None:
        progress(f"{ended} of {count_of(len(requests), noun)}")

    for answer in cluster.answers(ray, lambda: next(left, None), waiting=waiting):
        ended += 1
        number = answer.task.about
        name = nodes[number].name if nodes else ""
        found, reason = answer.value or ([], answer.error or f"its task was lost: {answer.lost}")
        for each in found:
            yield Reply(number=number, reply=each, node=name)
        if reason:
            yield Reply(number=number, reason=reason, node=name)


def on_slurm(
    module: str,
    requests: Sequence[bytes],
    *,
    shared: Path,
    partition: str | None,
    minutes: int,
    node_gpus: int | None = None,
    name: str = "rooflight_programs",
    noun: str = "program",
    progress: Progress,
) -> Iterator[Reply]:
    """Submit a job, and yield the replies as they arrive: of the tasks of an array, or with ``node_gpus``, of one on
    each of as many nodes, with all its cores and so many GPUs.

    ``shared`` is a folder that the nodes see too; ``minutes`` limits each task. Raises ValueError where there is no
    sbatch, and for more requests than an array may have, RuntimeError where sbatch refuses, where the controller is
    silent for minutes, and where a job ends before its nodes start.
    """
    slurm.program("sbatch")
    folder = Path(tempfile.mkdtemp(prefix=".rooflight-programs-", dir=shared)).resolve()
    try:
        for number, request in enumerate(requests, start=1):
            write_whole(folder / f"{number}.request", request)
        limits = (*((f"--partition={partition}",) if partition else ()), f"--time={minutes}", f"--job-name={name}")
        if node_gpus is None:
            slurm.check_array(len(requests), count_of(len(requests), noun))
            gpus = any(node.gpus for node in slurm.nodes(partition))
            text = array_script(module, folder, len(requests), *limits, gpus=gpus)
        else:
            text = nodes_script(module, folder, len(requests), *limits, gpus=node_gpus)
        write_whole(folder / "job.sbatch", text)
        job = slurm.submit(folder / "job.sbatch")
        try:
            yield from _follow(job, folder, len(requests), noun, progress, each_a_node=node_gpus is not None)
        except BaseException:
            slurm.cancel(job)
            raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def array_script(module: str, folder: Path, count: int, *limits: str, gpus: bool) -> str:
    """The job script of an array with a task per request, and with more options of sbatch."""
    place = shlex.quote(str(folder))
    command = shlex.join([sys.executable, "-m", module])
    return slurm.script(
        f"--array=1-{count}",
        "--ntasks=1",
        *(("--gpus-per-task=1",) if gpus else slurm.ALONE),
        *limits,
        slurm.output(folder, "%a.out"),
        body=(f'exec {command} {place}/"$SLURM_ARRAY_TASK_ID".request {place}/"$SLURM_ARRAY_TASK_ID".reply',),
    )


def nodes_script(module: str, folder: Path, count: int, *limits: str, gpus: int) -> str:
    """The same of nodes for itself alone, with one task on each, which sees all its cores and GPUs."""
    each = shlex.join(["bash", "-c", _ON_A_NODE, "task", str(folder), sys.executable, "-m", module])
    return slurm.script(
        f"--nodes={count}",
        "--ntasks-per-node=1",
        *slurm.ALONE,
        *((f"--gres=gpu:{gpus}",) if gpus else ()),
        *limits,
        "--no-kill",  # a node that dies takes no other with it
        slurm.output(folder, "job.out"),
        body=(
            f"scontrol show hostnames > {shlex.quote(str(folder / 'nodes'))}",
            f"srun --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=0 --wait=0 --output=none {each}",
        ),
    )


def _follow(job: int, folder: Path, count: int, noun: str, progress: Progress, *, each_a_node: bool) -> Iterator[Reply]:
    known: set[Path] = set()
    answered: set[int] = set()
    watch = slurm.JobWatch(job)
    period_s, longest_s = _PERIODS_S
    while True:
        watch.look()  # before the files: what a job left when it ended is there then
        nodes = _lines(folder / "nodes")
        for path in _replies(folder, known):
            number = int(path.name.partition(".")[0]) - 1
            answered.add(number)
            yield Reply(number=number, reply=path.read_bytes(), node=nodes[number] if number < len(nodes) else "")
        all_there = len(answered) == count
        if all_there and not each_a_node:  # a program on a node may have more to say
            return
        if watch.waits_for:
            progress(f"job {job} waits for {count_of(count, noun)} ({watch.waits_for})")
        else:
            progress(f"job {job}: {len(answered)} of {count_of(count, noun)}")
        if watch.ended_s is not None:
            if all_there or time.monotonic() - watch.ended_s > _GRACE_S:
                break
            period_s = _PERIODS_S[0]
        time.sleep(period_s)
        period_s = min(1.2 * period_s, longest_s)
    about = _lines(folder / "job.out")
    if each_a_node and not nodes:
        raise RuntimeError(f"job {job} ended before its nodes started: {about[-1] if about else 'was it cancelled?'}")
    for number in sorted(set(range(count)) - answered):
        name = nodes[number] if number < len(nodes) else ""
        last = _lines(folder / f"{number + 1}.out") or slurm.lines_about(name, about)
        reason = last[-1] if last else f"its task left no reply: does its node see {folder.parent}?"
        yield Reply(number=number, reason=reason, node=name)


def _replies(folder: Path, known: set[Path] | None = None) -> list[Path]:
    found = sorted(set(folder.glob(f"*{_SUFFIX}")) - (known or set()))
    if known is not None:
        known.update(found)
    return found


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()]
