"""SLURM by its commands: job scripts are submitted, followed and cancelled. No library, no configuration."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PASSED_ON: Final = ("PYTHONPATH", "ROOFLIGHT_CACHE")
_TIMEOUT_S: Final = 60.0
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


def state(job: int) -> tuple[str, str]:
    """A job's state (``"PENDING"``, ``"RUNNING"``, ...), and why it waits; two empty texts once SLURM forgot it."""
    try:
        found = ask("squeue", "--noheader", "--states=all", f"--job={job}", "--format=%T|%r")
    except RuntimeError as error:
        if "Invalid job id" in str(error):
            return "", ""
        raise
    now, _, reason = found.partition("|")
    return now, reason


def runs(job: int) -> bool:
    """Whether a job, or any task of an array, has not ended yet."""
    try:
        found = ask("squeue", "--noheader", "--states=all", f"--job={job}", "--format=%T")
    except RuntimeError as error:
        if "Invalid job id" in str(error):
            return False
        raise
    return any(active(line.strip()) for line in found.splitlines())


def active(state: str) -> bool:
    """Whether a job in this state has not ended yet."""
    return state in _ACTIVE


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


def largest_array() -> int | None:
    """How many tasks an array that counts from 1 may have; None where SLURM does not list it."""
    try:
        found = re.search(r"^MaxArraySize\s*=\s*(\d+)", ask("scontrol", "show", "config"), re.MULTILINE)
    except RuntimeError:
        return None
    return int(found[1]) - 1 if found else None


def output(folder: Path, pattern: str) -> str:
    """The directive that sends a job's output to a file of ``folder``; ``pattern`` is a name with SLURM's placeholders.

    Blanks in the folder's path stay, and a percent sign in it is no placeholder.
    """
    return f"#SBATCH --output={quoted(str(folder).replace('%', '%%') + '/' + pattern)}"


def quoted(text: str) -> str:
    """A value as a line of ``#SBATCH`` reads it, where it has blanks."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def exports(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Lines of a job script with what Python needs of this process: a site may pass no environment on to its jobs."""
    return tuple(f"export {name}={shlex.quote(environment[name])}" for name in _PASSED_ON if environment.get(name))


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return re.sub(r"^\w+: error: ", "", lines[0]) if lines else "it failed without a message"
