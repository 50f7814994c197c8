"""What ``rooflight run`` costs the scripts in ``timed_scripts``, and whether it names the time between their steps.

    python benchmarks/run_overhead.py [--only quick steady waiting] [--turns 5]

Each script runs plain and under ``rooflight run`` in turn, and measures itself: the wall and the thread's CPU time of
each iteration, when its imports were done and when its last line ran. Medians over the iterations of a run, then over
the turns. Medians mean little on a machine that does other work too: ``quiet_s`` is the wall time that a tenth of the
iterations stayed under. Peak memory is that
of the process and its children together, looked at every 20 ms: until the script's last line, and with the report.
Each report is the first one: the cache is empty.
Ends with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent / "timed_scripts"
PAGE = os.sysconf("SC_PAGE_SIZE")
MOST_LONGER = 0.02  # of a step
MOST_LONGER_S = 30e-6  # of a step under a millisecond and a half
SHORT_S = 1.5e-3
MOST_MEMORY_BYTES = 100e6
MOST_REPORT_S = 3.0
MOST_IMPORT_S = 0.5
MOST_OFF = 0.05  # of the time that the loader takes, and of the step's


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One run: medians of an iteration, and what surrounds them; ``report`` has the JSON document."""

    wall_s: float
    quiet_s: float
    cpu_s: float
    step_s: float
    wait_s: float
    imports_s: float
    after_s: float
    peak_bytes: int
    after_bytes: int
    report: dict[str, Any] | None


def turn(script: Path, *, watched: bool) -> Turn:
    with tempfile.TemporaryDirectory(prefix="run-overhead-") as folder:
        stamps, report = Path(folder) / "stamps.json", Path(folder) / "run.json"
        tool = ["-m", "rooflight", "run", "--save", f"{folder}/run.session", "--json", str(report)] if watched else []
        environment = os.environ | {"STAMPS": str(stamps), "OMP_NUM_THREADS": "1", "ROOFLIGHT_CACHE": f"{folder}/cache"}
        start = time.time()
        with (Path(folder) / "errors").open("w+") as errors:
            process = subprocess.Popen(
                [sys.executable, *tool, str(script)], env=environment, stdout=subprocess.DEVNULL, stderr=errors
            )
            seen = []
            while process.poll() is None:
                seen.append((time.time(), resident_bytes(process.pid)))
                time.sleep(0.02)
            end = time.time()
            if process.returncode:
                errors.seek(0)
                raise SystemExit(f"{script.name} ended with {process.returncode}:\n{errors.read()}")
        own = json.loads(stamps.read_text())
        document = json.loads(report.read_text()) if watched else None

    def median_s(name: str) -> float:
        return statistics.median(own[name]) / 1e9 if own[name] else 0.0

    return Turn(wall_s=median_s("iterations_ns"), quiet_s=statistics.quantiles(own["iterations_ns"], n=10)[0] / 1e9,
                cpu_s=median_s("cpu_ns"), step_s=median_s("steps_ns"),
                wait_s=statistics.fmean(own["waits_ns"][1:]) / 1e9 if own["waits_ns"] else 0.0,
                imports_s=own["imported"] - start, after_s=end - own["ended"],
                peak_bytes=max(held for when, held in seen if when <= own["ended"]),
                after_bytes=max(held for when, held in seen), report=document)  # fmt: skip


def resident_bytes(process: int) -> int:
    """Of a process and all below it; 0 once it has ended."""
    try:
        own = int(Path(f"/proc/{process}/statm").read_text().split()[1]) * PAGE
        below = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except (OSError, IndexError):
        return 0
    return own + sum(resident_bytes(int(child)) for child in below)


def compared(script: Path, turns: int) -> list[str]:
    """Print a script's row; the bars that it missed."""
    plain, watched = [], []
    for _ in range(turns):
        plain.append(turn(script, watched=False))
        watched.append(turn(script, watched=True))

    def medians(name: str) -> tuple[float, float]:
        return tuple(statistics.median(getattr(each, name) for each in runs) for runs in (plain, watched))

    missed = []
    for name in ("wall_s", "quiet_s", "cpu_s"):
        without, with_it = medians(name)
        longer_s = with_it - without
        print(f"  {name:11} {without * 1e3:8.3f} ms -> {with_it * 1e3:8.3f} ms  "
              f"{longer_s / without:+6.1%}, {longer_s * 1e6:+7.1f} µs an iteration")  # fmt: skip
        if longer_s > (MOST_LONGER_S if without < SHORT_S else MOST_LONGER * without):
            missed.append(f"{name}: {longer_s * 1e6:.1f} µs longer")
    for name, unit, scale, most in (
        ("peak_bytes", "MB", 1e6, MOST_MEMORY_BYTES),
        ("after_bytes", "MB", 1e6, MOST_MEMORY_BYTES),
        ("imports_s", "s", 1, MOST_IMPORT_S),
        ("after_s", "s", 1, MOST_REPORT_S),
    ):
        without, with_it = medians(name)
        print(f"  {name:11} {without / scale:8.2f} {unit} -> {with_it / scale:8.2f} {unit}  "
              f"{(with_it - without) / scale:+.2f} {unit}")  # fmt: skip
        if with_it - without > most:
            missed.append(f"{name}: {(with_it - without) / scale:.2f} {unit} more")
    return missed + [problem for each in watched for problem in said(each)]


def said(watched: Turn) -> list[str]:
    """What the report says of the step and of the wait for data, against what the script measured in the same run."""
    assert watched.report is not None
    step_s = statistics.median(watched.report["wall_samples_s"])
    between = watched.report["run"]["between"]
    loader_s = sum(part["seconds"] for part in between if "load" in part["name"])
    parts = ", ".join(f"{part['name']} {part['seconds'] * 1e3:.2f} ms {part['share']:.1%}" for part in between)
    print(f"  reported    step {step_s * 1e3:.2f} ms (the script: {watched.step_s * 1e3:.2f}), loader "
          f"{loader_s * 1e3:.2f} ms (the script: {watched.wait_s * 1e3:.2f}), between: {parts}")  # fmt: skip
    off_s = abs(step_s - watched.step_s)
    found = [] if off_s <= MOST_OFF * watched.step_s + MOST_LONGER_S else ["the step's time is off"]
    if watched.wait_s and abs(loader_s / watched.wait_s - 1) > MOST_OFF:
        found.append("the loader's time is off")
    return found


def main() -> int:
    names = sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem != "stamps")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", default=names, choices=names, metavar="NAME", help="only these scripts")
    parser.add_argument("--turns", type=int, default=5, help="runs of each, plain and watched in turn (5)")
    options = parser.parse_args()
    failed = False
    for name in options.only:
        print(name, flush=True)
        for problem in compared(SCRIPTS / f"{name}.py", options.turns):
            failed = True
            print(f"  MISSED {problem}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
