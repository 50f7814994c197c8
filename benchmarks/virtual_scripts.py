"""Steps of CUDA scripts recorded on a GPU that is not there, beside the same recorded on a real H100.

    python benchmarks/virtual_scripts.py [SCRIPT...]        default: all that were recorded there

Prints calls, matrix FLOPs, bytes moved and peak memory of both, and the peak that the allocator of the real one counted
(``results/h100/scripts/truth.json``, of all steps after the first). Scripts with a process group run with one rank.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import rooflight as rl

ROOT = Path(__file__).resolve().parents[1]
REAL = Path(__file__).parent / "results" / "h100" / "scripts"
DEVICE = "H100-SXM5-80GB"
ONE_RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}


def main() -> int:
    names = sys.argv[1:] or sorted(path.stem for path in REAL.glob("*.session"))
    truth = {row["script"]: row for row in json.loads((REAL / "truth.json").read_text()) if not row["args"]}
    print(
        f"{'script':<20}{'calls':>8}{'real':>8}{'matrix FLOPs':>14}{'bytes':>10}{'peak':>9}{'of allocator':>14}{'s':>7}"
    )
    for name in names:
        print(line(name, truth.get(name)), flush=True)
    return 0


def line(name: str, truth: dict | None) -> str:
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "virtual.session"
        script = ROOT / "tests" / "scripts" / "cuda" / f"{name}.py"
        command = [sys.executable, "-m", "rooflight", "run", "--on", DEVICE, "--save", str(saved), str(script)]
        run = subprocess.run(command, env={**os.environ, **ONE_RANK}, capture_output=True, text=True, check=False)
        if not saved.exists() or not len(rl.load(saved)):
            return f"{name:<20}  {(run.stderr.strip().splitlines() or ['no session'])[-1][:100]}"
        virtual = rl.analyze(rl.load(saved), DEVICE)
    real = rl.analyze(rl.load(REAL / f"{name}.session"), DEVICE)
    here, there = virtual.totals, real.totals
    flops = "equal" if here.matrix_flops == there.matrix_flops else f"{here.matrix_flops / there.matrix_flops:.4f}"
    moved = (here.bytes_read + here.bytes_written) / (there.bytes_read + there.bytes_written)
    peak = virtual.memory.peak_bytes
    counted = max(truth["peak_bytes"][1:] or truth["peak_bytes"]) - truth["held_before_bytes"] if truth else 0
    return (
        f"{name:<20}{here.calls:>8}{there.calls:>8}{flops:>14}{moved:>10.5f}{peak / real.memory.peak_bytes:>9.4f}"
        f"{f'{peak / counted:.3f}' if counted else '':>14}{time.monotonic() - begin:>7.1f}"
    )


if __name__ == "__main__":
    sys.exit(main())
