"""Jobs of SLURM that sample: estimate-train-time's (a process per GPU of a node), or an array (a task per part)."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rooflight.records.files import write_whole
from rooflight.sampling.executor import slurm
from rooflight.sampling.job import DATA, LOG

PARTS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A job script. ``arguments`` follow ``rooflight sample``; ``parts`` is one per GPU, or one per node on CPUs.

    ``out`` is the folder of the rows, where the jobs' output goes too, and ``folder`` is where the command was
    given: paths in ``arguments`` may be relative to it. ``threads`` None takes all cores of a node.
    """

    arguments: Sequence[str]
    out: Path
    folder: Path
    parts: int = PARTS
    cpu: bool = False
    threads: int | None = None
    time: str = "6:00:00"
    name: str = "kernel_sampling"

    @property
    def log(self) -> Path:
        """The folder of the jobs' output."""
        return self.folder / self.out / LOG

    def node(self) -> str:
        """All parts on one node: side by side on its GPUs, one after the other on its cores."""
        gpus = f"--ntasks-per-node={self.parts}", f"--gpus-per-node={self.parts}"
        return self._text(
            "--nodes=1",
            *(("--ntasks-per-node=1",) if self.cpu else gpus),
            *slurm.ALONE,
            log="slurm-%j.out",
            body=self._one_by_one() if self.cpu else self._side_by_side(),
        )

    def array(self) -> str:
        """One task a part, wherever there is a GPU, or a node's cores."""
        share = (f"--cpus-per-task={self.threads}",) if self.threads else slurm.ALONE
        return self._text(
            f"--array=1-{self.parts}",
            "--ntasks=1",
            *(share if self.cpu else ("--gpus-per-task=1",)),
            "--requeue",
            log="slurm-%A_%a.out",
            # in the shell's place: Ctrl-C, scancel and the time limit reach it, and its exit code is the job's
            body=(f"exec {self._command('$SLURM_ARRAY_TASK_ID')}",),
        )

    def _side_by_side(self) -> tuple[str, ...]:
        return (
            f"# Run {self.parts} parallel sampling jobs; submit again to go on where a job ended",
            f"for i in $(seq 1 {self.parts}); do",
            f"    CUDA_VISIBLE_DEVICES=$((i-1)) {self._command('$i')} &",
            '    running="$running $!"',
            "done",
            "",
            "failed=0",
            "for each in $running; do",
            '    wait "$each" || failed=1',
            "done",
            "exit $failed",
        )

    def _one_by_one(self) -> tuple[str, ...]:
        return (
            f"# Run {self.parts} parts one after the other: side by side they would disturb each other's times",
            "failed=0",
            f"for i in $(seq 1 {self.parts}); do",
            f"    {self._command('$i')} || failed=1",
            "done",
            "exit $failed",
        )

    def _text(self, *directives: str, log: str, body: Sequence[str]) -> str:
        return slurm.script(
            *directives,
            f"--time={self.time}",
            f"--job-name={self.name}",
            f"--chdir={slurm.quoted(str(self.folder))}",
            slurm.output(self.log, log),
            body=body,
        )

    def _command(self, part: str) -> str:
        words = [sys.executable, "-m", "rooflight", "sample", *self.arguments, "--parts", str(self.parts)]
        return f"{shlex.join(words)} --part {part} --device-num 0"


def write(script: Script, path: Path) -> Path:
    """Write estimate-train-time's job script."""
    return _write(script, path, script.node())


def submit(script: Script, path: Path) -> str:
    """Write an array and hand it to sbatch. Returns the number of the job, and how to follow it.

    Raises ValueError where there is no sbatch and for more parts than an array may have, RuntimeError where sbatch
    refuses.
    """
    slurm.program("sbatch", "leave out --submit and copy the job script to the cluster")
    slurm.check_array(script.parts, f"--parts {script.parts}")
    job = slurm.submit(_write(script, path, script.array()))
    return (
        f"Submitted batch job {job}\n"
        f"  state:  squeue --job {job}\n"
        f"  output: {script.log}/slurm-{job}_*.out\n"
        f"  then:   rooflight merge {shlex.quote(str(script.folder / script.out / DATA))}/*.csv"
    )


def _write(script: Script, path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    script.log.mkdir(parents=True, exist_ok=True)  # SLURM makes no folder for a job's output
    write_whole(path, text)
    return path
