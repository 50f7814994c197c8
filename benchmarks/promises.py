"""How often the promises of ``rooflight diagnose`` hold: predicted and measured gains of programs with a known cause.

Each file of FOLDER has ``make_step`` and ``make_step_fixed``: the planted programs of the tests and, with
ROOFLIGHT_DATA, the real ones of ``diagnose_real``. Both steps run in turns in a process of their own, on one thread,
which other programs disturb less. ``results/promises.csv`` keeps their seconds; ``--measure`` takes them again.
"""

from __future__ import annotations

import argparse
import ast
import csv
import importlib.util
import json
import math
import os
import re
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

from csv_results import FOLDER, write_csv

ROUNDS = 9
PLANTED = Path(__file__).parents[1] / "tests" / "diagnosis" / "planted"
REAL = {
    "r02_field": (("overhead",), ("anomaly",)),
    "r04_clicks": (("memory",), ("sparse-gradient",)),
    "r06_characters": (("compute", "memory"), ("kv-cache",)),
    "r08_shots": (("idle",), ("workers-anew", "loader")),
    "r10_video": (("overhead", "memory"), ("recompiles",)),
    "r12_preferences": (("communication", "latency"), ("small-collectives",)),
    "r14_context": (("memory",), ("repeat-kv",)),
    "r16_sentences": (("compute",), ("half-on-cpu",)),
    "r18_masks": (("memory", "overhead"), ("scan",)),
    "r20_frontend": (("compute", "memory"), ("constant-work",)),
    "r22_speech": (("overhead",), ("vectorise", "sync")),
    "r24_voice": (("latency", "overhead"), ("constant-work",)),
}
"""Regimes and first remedies that are right. Without a remedy no finding may cost over 5 % of the step."""


@dataclass
class Promise:
    """What the diagnosis says of a program, and the share of the step that its first remedy saves, if that is right."""

    program: str
    regime: str
    regime_right: bool
    remedy: str
    remedy_right: bool
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    measured: float | None = None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME", help="beginnings of names of programs")
    parser.add_argument("--json", type=Path, help="write the table to this file")
    parser.add_argument("--measure", action="store_true", help="measure gains, and diagnose nothing")
    parser.add_argument("--turns", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.turns:
        return turns(options.turns)
    data = os.environ.get("ROOFLIGHT_DATA")
    folders = options.folders or [PLANTED, *([Path(data) / "diagnose_real"] if data else [])]
    paths = [path for folder in folders for path in sorted(folder.glob("*.py"))]
    promises = []
    for path in paths:
        if path.name.startswith(tuple(options.only)) and truth(path):
            seconds = None if options.measure else kept().get(path.stem)
            step_s, fixed_s = seconds or keep(path.stem, child([__file__, "--turns", str(path)]))
            if options.measure:
                print(f"{path.stem:18} {step_s:.3g} s, fixed {fixed_s:.3g} s, {step_s / fixed_s:.2f} times", flush=True)
            else:
                promises.append(promise(path, 1 - fixed_s / step_s))
                print(line(promises[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in promises], indent=1))
    if promises:
        print("\n".join(summary(promises)))
    return 0


def truth(path: Path):
    """Right regimes and right first remedies of a program, read from its text; None of a file without."""
    if path.stem in REAL:
        return REAL[path.stem]
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "TRUTH":
            found = ast.literal_eval(node.value)
            remedy = found["remedy"]
            return found["regime"], (remedy,) if isinstance(remedy, str) else remedy or ()
    return None


def promise(path: Path, measured: float) -> Promise:
    regimes, remedies = truth(path)
    told = child(["-m", "rooflight", "diagnose", f"{path}:make_step", "--json", "-"])
    found, regime = told["findings"], told["regime"]
    first = found[0] if found else None
    healthy = all(each["share"] <= 0.05 for each in found)
    right = first is not None and first["id"] in remedies if remedies else healthy
    said = Promise(path.stem, regime, regime in regimes, first["id"] if first else "none", right)
    if remedies and right:
        step_s = first["seconds_lost"] / first["share"]  # as long as it was when it was diagnosed
        gains = (first[f"predicted_gain_{which}s"] for which in ("", "low_", "high_"))
        said.predicted, said.low, said.high = (gain_s / step_s for gain_s in gains)
        said.measured = measured
    return said


def child(words: list[str]):
    """What a Python process of its own prints as JSON, after whatever the program prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
        return json.loads(done.stdout[re.search(r"^[{\[]", done.stdout, re.MULTILINE).start() :])
    except (subprocess.TimeoutExpired, ValueError, AttributeError) as error:
        print(words[-3:], type(error).__name__, "" if "Timeout" in str(error) else done.stderr[-300:], file=sys.stderr)
        return {"findings": [], "regime": "none"} if words[0] == "-m" else (math.nan, math.nan)


def turns(path: Path) -> int:
    """Median seconds of both steps in alternation, after two calls of each."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    steps = module.make_step(), module.make_step_fixed()
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(ROUNDS + 2):
        for step, seconds in zip(steps, times, strict=True):
            calls = 1 if number < 2 else max(1, min(10, int(0.02 / seconds[1])))
            begin = perf_counter()
            for _ in range(calls):
                step()
            seconds.append((perf_counter() - begin) / calls)
    print("\n" + json.dumps([statistics.median(seconds[2:]) for seconds in times]), flush=True)
    os._exit(0)  # processes and threads of a program end with it


def kept() -> dict[str, tuple[float, float]]:
    file = FOLDER / "promises.csv"
    rows = csv.DictReader(file.read_text().splitlines()) if file.exists() else ()
    return {row["program"]: (float(row["step_s"]), float(row["fixed_s"])) for row in rows}


def keep(name: str, seconds: tuple[float, float]) -> tuple[float, float]:
    rows = sorted({**kept(), name: seconds}.items())
    write_csv("promises", ("program", "step_s", "fixed_s"), [(name, f"{a:.4g}", f"{b:.4g}") for name, (a, b) in rows])
    return seconds


def line(said: Promise) -> str:
    right = ["right" if each else "WRONG" for each in (said.regime_right, said.remedy_right)]
    text = f"{said.program:16} {said.regime:13} {right[0]}  {said.remedy:18} {right[1]}"
    if said.predicted is None:
        return text
    text += (
        f"  saves {said.predicted:4.0%} ({said.low:.0%} to {said.high:.0%}) of a step, measured {said.measured:4.0%}"
    )
    return text + ("" if said.low <= said.measured <= said.high else " OUTSIDE")


def summary(promises: list[Promise]):
    yield f"regimes right {sum(each.regime_right for each in promises)} of {len(promises)}"
    yield f"first remedies right {sum(each.remedy_right for each in promises)} of {len(promises)}"
    if known := [each for each in promises if each.predicted is not None]:
        error = statistics.median(abs(each.predicted / each.measured - 1) for each in known)
        held = statistics.mean(each.low <= each.measured <= each.high for each in known)
        yield f"median error of the gain {error:.0%}, intervals that hold {held:.0%}, of {len(known)}"


if __name__ == "__main__":
    sys.exit(main())
