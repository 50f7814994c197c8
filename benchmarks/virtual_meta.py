"""Steps of presets recorded on a GPU that is not there, beside the same recorded on the meta device.

    python benchmarks/virtual_meta.py [PROGRAM...]      default: the ten of ``PROGRAMS``

Prints matrix FLOPs and bytes of both, without the host's, and the CPU time that recording took there.
"""

from __future__ import annotations

import resource
import sys
import tempfile
from pathlib import Path

import rooflight as rl
from rooflight.front.options import RunOptions
from rooflight.front.targets import record_without_hardware

DEVICE = "H100-SXM5-80GB"
PROGRAMS = (
    "gpt2 train", "gpt2 forward", "llama-tiny train", "qwen3-8b train small", "gpt-neox-20b train small",
    "bert-large train", "vit-large train", "resnet-50 train", "mamba-130m train", "whisper-large-v3 forward",
)  # fmt: skip


def main() -> int:
    print(f"{'program':<28}{'calls':>8}{'on meta':>9}{'matrix FLOPs':>16}{'bytes':>10}{'s of CPU':>10}")
    for name in sys.argv[1:] or PROGRAMS:
        preset, step, *small = name.split()
        meta = record_without_hardware(preset, RunOptions(step=step, small=bool(small)), lambda _: None).session
        here, there = rl.analyze(virtual(preset, step, bool(small)), DEVICE).totals, rl.analyze(meta, DEVICE).totals
        flops = "equal" if here.matrix_flops == there.matrix_flops else f"{here.matrix_flops / there.matrix_flops:.6f}"
        moved = (here.bytes_read + here.bytes_written) / (there.bytes_read + there.bytes_written)
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"{name:<28}{here.calls:>8}{there.calls:>9}{flops:>16}{moved:>10.5f}{spent(children):>10.1f}", flush=True)
    return 0


def virtual(preset: str, step: str, small: bool) -> rl.Session:
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "it.session"
        args = [preset, "--step", step, *(["--small"] if small else [])]
        rl.run("rooflight.sources.workloads.spread", args, on=DEVICE, module=True, save=saved)
        return rl.load(saved)


def spent(now: resource.struct_rusage, before: list[float] = [0.0]) -> float:  # noqa: B006
    """Seconds of CPU since the last call."""
    total, before[0] = now.ru_utime + now.ru_stime - before[0], now.ru_utime + now.ru_stime
    return total


if __name__ == "__main__":
    sys.exit(main())
