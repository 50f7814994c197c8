"""The local executor: one process for each visible GPU, each with its part of the sweep; on a CPU, this process."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence


def visible_gpus() -> int:
    """How many GPUs torch sees."""
    import torch

    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


def run_on_all(
    arguments: Sequence[str], *, gpus: int, parts: int, part: int, progress: Callable[[str], object]
) -> None:
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
