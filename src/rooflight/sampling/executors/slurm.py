"""The SLURM executor: the page's job script, one process a GPU of one node, or an array with a task a part."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PARTS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A job script. ``arguments`` follow ``rooflight sample``; ``parts`` is one a GPU."""

    arguments: Sequence[str]
    parts: int = PARTS
    time: str = "6:00:00"
    name: str = "kernel_sampling"

    def node(self) -> str:
        """All parts side by side on the GPUs of one node."""
        return "\n".join(
            (
                "#!/bin/bash",
                "#SBATCH --nodes=1",
                f"#SBATCH --ntasks-per-node={self.parts}",
                f"#SBATCH --gpus-per-node={self.parts}",
                *self._common(),
                f"# Run {self.parts} parallel sampling jobs; submit again to go on where a job ended",
                f"for i in $(seq 1 {self.parts}); do",
                f"    CUDA_VISIBLE_DEVICES=$((i-1)) {self._command('$i')} &",
                "done",
                "",
                "wait",
                "",
            )
        )

    def array(self) -> str:
        """One task a part, wherever there is a GPU."""
        return "\n".join(
            (
                "#!/bin/bash",
                f"#SBATCH --array=1-{self.parts}",
                "#SBATCH --ntasks=1",
                "#SBATCH --gpus-per-task=1",
                "#SBATCH --requeue",
                *self._common(),
                self._command("$SLURM_ARRAY_TASK_ID"),
                "",
            )
        )

    def _common(self) -> tuple[str, ...]:
        return (f"#SBATCH --time={self.time}", f"#SBATCH --job-name={self.name}", "")

    def _command(self, part: str) -> str:
        words = [sys.executable, "-m", "rooflight", "sample", *self.arguments, "--parts", str(self.parts)]
        return f"{shlex.join(words)} --part {part} --device-num 0"


def write(script: Script, path: Path) -> Path:
    """Write the page's job script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script.node(), encoding="utf-8")
    return path


def submit(script: Script, path: Path) -> str:
    """Write an array and hand it to sbatch. Returns what sbatch says.

    Raises ValueError where there is no sbatch, RuntimeError where it refuses.
    """
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise ValueError("there is no sbatch here: leave out --submit and copy the job script to the cluster")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script.array(), encoding="utf-8")
    answer = subprocess.run([sbatch, str(path)], capture_output=True, text=True, check=False)
    if answer.returncode:
        raise RuntimeError(f"sbatch refused {path}: {answer.stderr.strip() or answer.stdout.strip()}")
    return answer.stdout.strip()
