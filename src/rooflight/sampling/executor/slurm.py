"""SLURM by its commands: job scripts are submitted, followed and cancelled. No library, no configuration."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_PASSED_ON: Final = ("PYTHONPATH", "ROOFLIGHT_CACHE")
ALONE: Final = ("--exclusive", "--mem=0")
"""Whoever else computes on the node disturbs the times; a share of its memory may be too little for large shapes."""
_TIMEOUT_S: Final = 60.0
_SILENT_S: Final = 120.0  # a controller that is restarted answers again, and the nodes compute meanwhile
_ACTIVE: Final = frozenset(
    ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "RESIZING", "SIGNALING", "STAGE_OUT")
)


def program(name: str, otherwise: str = "run this on a machine of the cluster") -> str:
    """The path of one of SLURM's commands. Raises ValueError, saying what to do ``otherwise``, where there is none."""
    found = shutil.which(name)
    if found is None:
        raise ValueError(f"there is no {name} here: {otherwise}")
    return found


def ask(*words: str) -> str:
    """What a command of SLURM prints. Raises ValueError where it is not installed, RuntimeError where it fails."""
    try:
        done = subprocess.run(
            [program(words[0]), *words[1:]], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{words[0]} did not answer within {_TIMEOUT_S:g} s: is the controller up?") from None
    if done.returncode:
        raise RuntimeError(f"{words[0]}: {_first_line(done.stderr or done.stdout)}")
    return done.stdout.strip()


def submit(path: Path) -> int:
    """Hand a job script to sbatch. Returns the number of the job.

    Raises ValueError where there is no sbatch, RuntimeError where it refuses.
    """
    try:
        answer = ask("sbatch", "--parsable", str(path))
    except RuntimeError as error:
        raise RuntimeError(f"sbatch refused {path}: {str(error).removeprefix('sbatch: ')}") from None
    return int(answer.split(";")[0])  # a federation adds its cluster's name


def state(job: int) -> tuple[bool, str]:
    """Whether a job, or any task of an array, has not ended yet, and why it waits: empty where some of it runs. SLURM
    forgets what has ended.
    """
    try:
        found = ask("squeue", "--noheader", "--states=all", f"--job={job}", "--format=%T|%r")
    except RuntimeError as error:
        if "Invalid job id" in str(error):
            return False, ""
        raise
    tasks = [line.strip().partition("|") for line in found.splitlines()]
    active = [(now, reason) for now, _, reason in tasks if now in _ACTIVE]
    waits = all(now == "PENDING" for now, _ in active)
    return bool(active), active[0][1] if active and waits else ""


@dataclass(slots=True)
class JobWatch:
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
            active, self.waits_for = state(self.job)
        except RuntimeError:
            if time.monotonic() - self._answered_s > _SILENT_S:
                raise
            return
        self._answered_s = time.monotonic()
        if not active:
            self.ended_s = self._answered_s


def cancel(job: int) -> None:
    """End a job; one that has ended stays as it is."""
    with suppress(RuntimeError):
        ask("scancel", str(job))


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmNode:
    """A node: whether it is idle (and answers), and how many GPUs SLURM knows of."""

    name: str
    idle: bool
    gpus: int


def nodes(partition: str | None = None) -> tuple[SlurmNode, ...]:
    """The nodes of a partition (None: the default one).

    Raises ValueError for a partition that is not there, RuntimeError where the controller does not answer.
    """
    partition = partition or os.environ.get("SBATCH_PARTITION")
    try:
        listed = ask("sinfo", "--noheader", "--Node", "--format=%N|%P|%T|%G")
    except RuntimeError as error:
        raise RuntimeError(f"no SLURM cluster answers: run this where sinfo lists the nodes ({error})") from None
    found = []
    for line in listed.splitlines():
        name, where, now, resources = line.split("|")
        if where.rstrip("*") == partition or (partition is None and where.endswith("*")):
            gpus = sum(int(count) for count in re.findall(r"\bgpu(?::[^:,()]+)?:(\d+)", resources))
            found.append(SlurmNode(name=name, idle=now == "idle", gpus=gpus))  # one that does not answer is "idle*"
    if not found:
        raise ValueError(
            f"no partition {partition}: sinfo lists them" if partition else "no default partition: name one"
        )
    return tuple(found)


def check_array(count: int, what: str) -> None:
    """Raise ValueError for more tasks than an array that counts from 1 may have; ``what`` they are, for the message."""
    try:
        found = re.search(r"^MaxArraySize\s*=\s*(\d+)", ask("scontrol", "show", "config"), re.MULTILINE)
    except RuntimeError:
        return
    if found is not None and count >= int(found[1]):
        raise ValueError(f"{what}: an array has at most {int(found[1]) - 1} tasks here (MaxArraySize)")


def script(*directives: str, body: Sequence[str]) -> str:
    """A job script: the options of sbatch, what Python needs of this process, and what the job runs."""
    return "\n".join(("#!/bin/bash", *(f"#SBATCH {each}" for each in directives), "", *exports(), *body, ""))


def output(folder: Path, pattern: str) -> str:
    """The option that sends a job's output to a file of ``folder``; ``pattern`` is a name with SLURM's placeholders.

    Blanks in the folder's path stay, and a percent sign in it is no placeholder.
    """
    return f"--output={quoted(str(folder).replace('%', '%%') + '/' + pattern)}"


def lines_about(node: str, lines: Sequence[str]) -> list[str]:
    """What srun said about a node, of a job's output."""
    found = [line for line in lines if node and re.search(rf"\b{re.escape(node)}\b", line)]
    return [line.removeprefix("srun: error: ") for line in found]


def quoted(text: str) -> str:
    """A value as a line of ``#SBATCH`` reads it, where it has blanks."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def exports(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Lines of a job script with what Python needs: a site may pass no environment on to its jobs."""
    return tuple(f"export {name}={shlex.quote(environment[name])}" for name in _PASSED_ON if environment.get(name))


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return re.sub(r"^\w+: error: ", "", lines[0]) if lines else "it failed without a message"
