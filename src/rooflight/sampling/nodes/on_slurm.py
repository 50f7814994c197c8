"""Calibrating the nodes of a SLURM cluster: one job, a task per node, results in a folder that the nodes share."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from rooflight.records.files import write_whole
from rooflight.records.quantity import count_of
from rooflight.sampling.executor import slurm
from rooflight.sampling.nodes.program import read_new
from rooflight.sampling.nodes.roofs import NodeCalibration

_PERIODS_S: Final = (0.3, 5.0)  # between questions to the controller: the first, and the longest
_SILENT_S: Final = 120.0  # a controller that is restarted answers again, and the nodes compute meanwhile
_GRACE_S: Final = 5.0  # until a shared folder shows what a node wrote last
_MINUTES: Final = 20  # a GPU takes 40 s, and a node has eight


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What to ask for: how many nodes, of which partition (empty: SLURM's default), and GPUs of each."""

    nodes: int
    partition: str
    kind: Literal["cpu", "cuda"]
    gpus: int = 0
    notes: tuple[str, ...] = ()


def allocation(kind: Literal["cpu", "cuda"] | None, *, nodes: int | None, partition: str | None) -> Allocation:
    """All idle nodes of a partition, or any ``nodes`` of it; ``kind`` None: those with GPUs where there are any.

    Raises ValueError where no node is idle and no number was given, or none has a GPU though one was asked for.
    """
    there = slurm.nodes(partition)
    with_gpus = [node for node in there if node.gpus]
    if kind == "cuda" and not with_gpus:
        raise ValueError("SLURM lists no GPU (Gres) on any node: use --device cpu, or another --partition")
    kind = kind or ("cuda" if with_gpus else "cpu")
    usable = with_gpus if kind == "cuda" else there
    idle = sum(node.idle for node in usable)
    if not idle and nodes is None:
        raise ValueError("no node is idle: pass --nodes N to wait for N of them, or another --partition")
    least, most = min(node.gpus for node in usable), max(node.gpus for node in usable)
    notes = (f"Nodes have {least} to {most} GPUs: {least} of each were calibrated.",) if least != most else ()
    return Allocation(
        nodes=nodes or idle,
        partition=partition or "",
        kind=kind,
        gpus=least if kind == "cuda" else 0,
        notes=notes if kind == "cuda" else (),
    )


def run(
    asked: Allocation, *, shared: Path, quick: bool, progress: Callable[[str], object]
) -> Iterator[NodeCalibration]:
    """Submit the job, and yield each result as it arrives, at the end the nodes that gave none.

    ``shared`` is a folder that the nodes see too. Interrupted, the job is cancelled; what it had finished was yielded.
    Raises ValueError where there is no sbatch, RuntimeError where it refuses or the job ends before it starts.
    """
    slurm.program("sbatch")
    folder = Path(tempfile.mkdtemp(prefix=".calibrating-", dir=shared)).resolve()
    try:
        write_whole(folder / "job.sbatch", script(asked, folder, quick=quick))
        job = slurm.submit(folder / "job.sbatch")
        try:
            yield from _follow(job, folder, asked.nodes, progress)
        except BaseException:
            slurm.cancel(job)
            raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def script(asked: Allocation, folder: Path, *, quick: bool) -> str:
    """The job script: nodes for itself alone, and on each one task that sees all cores and GPUs."""
    command = [
        sys.executable,
        "-m",
        "rooflight.sampling.nodes.program",
        asked.kind,
        str(folder),
        *(["--quick"] if quick else []),
    ]
    errors = shlex.quote(str(folder).replace("%", "%%")) + "/%t.err"
    return "\n".join(
        (
            "#!/bin/bash",
            f"#SBATCH --nodes={asked.nodes}",
            "#SBATCH --ntasks-per-node=1",
            "#SBATCH --exclusive",
            "#SBATCH --mem=0",
            *((f"#SBATCH --gres=gpu:{asked.gpus}",) if asked.gpus else ()),
            *((f"#SBATCH --partition={asked.partition}",) if asked.partition else ()),
            f"#SBATCH --time={_MINUTES}",
            "#SBATCH --no-kill",  # a node that dies takes no other with it
            "#SBATCH --job-name=rooflight_calibrate",
            slurm.output(folder, "job.out"),
            "",
            *slurm.exports(),
            f"scontrol show hostnames > {shlex.quote(str(folder / 'nodes'))}",
            "srun --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=0 --wait=0 --output=none "
            f"--error={errors} {shlex.join(command)}",
            "",
        )
    )


def _follow(job: int, folder: Path, count: int, progress: Callable[[str], object]) -> Iterator[NodeCalibration]:
    """The results of a job until it has ended, then its nodes that gave none."""
    known: set[Path] = set()
    answered: set[str] = set()
    watch = _JobWatch(job)
    period_s, longest_s = _PERIODS_S
    while True:
        watch.look()  # before the files: what a job left when it ended is there then
        for found in read_new(folder, known):
            answered.add(found.node)
            yield found
        nodes = _lines(folder / "nodes")
        if watch.waits_for:
            progress(f"job {job} waits for {count_of(count, 'node')} ({watch.waits_for})")
        else:
            progress(f"job {job}: {len(answered)} of {count_of(len(nodes) or count, 'node')}")
        if watch.ended_s is not None:
            if answered.issuperset(nodes) or time.monotonic() - watch.ended_s > _GRACE_S:
                break
            period_s = _PERIODS_S[0]
        time.sleep(period_s)
        period_s = min(1.2 * period_s, longest_s)
    if not nodes:
        said = _lines(folder / "job.out")
        raise RuntimeError(f"job {job} ended before its nodes started: {said[-1] if said else 'was it cancelled?'}")
    for number, node in enumerate(nodes):
        if node not in answered:
            yield NodeCalibration(node=node, reason=_reason(folder, number, node))


@dataclass(slots=True)
class _JobWatch:
    """A job as the controller reports it; ``ended_s`` is when it was first known to have ended, on a steady clock."""

    job: int
    waits_for: str = ""
    ended_s: float | None = None
    _answered_s: float = field(default_factory=time.monotonic)

    def look(self) -> None:
        """Ask once more. Raises RuntimeError where the controller has been silent for too long."""
        if self.ended_s is not None:
            return
        try:
            state, reason = slurm.state(self.job)
        except RuntimeError:
            if time.monotonic() - self._answered_s > _SILENT_S:
                raise
            return
        self._answered_s = time.monotonic()
        self.waits_for = reason if state == "PENDING" else ""
        if not slurm.active(state):
            self.ended_s = self._answered_s


def _reason(folder: Path, number: int, node: str) -> str:
    """Why a node left nothing: its own last words, srun's about it, or that no word came through."""
    if lines := _lines(folder / f"{number}.err"):
        return lines[-1]
    about = [line for line in _lines(folder / "job.out") if re.search(rf"\b{re.escape(node)}\b", line)]
    if about:
        return about[-1].removeprefix("srun: error: ")
    return f"it left no result: does it see {folder.parent}?"


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()]
