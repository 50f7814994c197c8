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
from pathlib import Path
from time import perf_counter
from typing import NoReturn

from csv_results import FOLDER, write_csv

PLANTED = Path(__file__).parents[1] / "tests" / "diagnosis" / "planted"
REAL = {
    "r02_field": ("overhead", "anomaly"),
    "r04_clicks": ("memory", "sparse-gradient"),
    "r06_characters": ("compute memory", "kv-cache"),
    "r08_shots": ("idle", "workers-anew loader"),
    "r10_video": ("overhead memory", "recompiles"),
    "r12_preferences": ("communication latency", "small-collectives"),
    "r14_context": ("memory", "repeat-kv"),
    "r16_sentences": ("compute", "half-on-cpu"),
    "r18_masks": ("memory overhead", "scan"),
    "r20_frontend": ("compute memory", "constant-work"),
    "r22_speech": ("overhead", "vectorise sync"),
    "r24_voice": ("latency overhead", "constant-work"),
}
"""Regimes and first remedies that are right. Without a remedy no finding may cost over 5 % of the step."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME", help="beginnings of names of programs")
    parser.add_argument("--json", type=Path, help="write the table to this file")
    parser.add_argument("--measure", action="store_true", help="measure gains, and diagnose nothing")
    options = parser.parse_args()
    data = os.environ.get("ROOFLIGHT_DATA")
    folders = options.folders or [PLANTED, *([Path(data) / "diagnose_real"] if data else [])]
    told = []
    for path in (path for folder in folders for path in sorted(folder.glob("*.py"))):
        if path.name.startswith(tuple(options.only)) and truth(path):
            step_s, fixed_s = measured(path, options.measure)
            if options.measure:
                print(f"{path.stem:16} {step_s:.4f} s, fixed {fixed_s:.4f} s, {step_s / fixed_s:.2f} times", flush=True)
            else:
                told.append(diagnosed(path, 1 - fixed_s / step_s))
                print(line(told[-1]), flush=True)
    for what in ("regime", "remedy") if told else ():
        print(f"{what} right: {sum(row[f'{what}_right'] for row in told)} of {len(told)}")
    if known := [row for row in told if "gain" in row]:
        error = statistics.median(abs(row["gain"] / row["measured"] - 1) for row in known)
        held = statistics.mean(row["holds"] for row in known)
        print(f"median error of the gain {error:.0%}, intervals that hold {held:.0%}, of {len(known)}")
    if options.json:
        options.json.write_text(json.dumps(told, indent=1))
    return 0


def truth(path: Path):
    """Right regimes and right first remedies of a program, read from its text; None of a file without."""
    if path.stem in REAL:
        return tuple(words.split() for words in REAL[path.stem])
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "TRUTH":
            regimes, remedies = ast.literal_eval(node.value).values()
            return regimes, (remedies,) if isinstance(remedies, str) else remedies or ()
    return None


def diagnosed(path: Path, saved: float):
    """What the diagnosis says, and the share of the step that its first remedy saves if that remedy is right."""
    regimes, remedies = truth(path)
    failed = {"regime": "failed", "findings": [{"id": "none", "share": math.nan}]}
    found = child(["-m", "rooflight", "diagnose", f"{path}:make_step", "--json", "-"]) or failed
    first = found["findings"][0] if found["findings"] else {"id": "none"}
    right = first["id"] in remedies if remedies else all(each["share"] <= 0.05 for each in found["findings"])
    row = {"program": path.stem, "regime": found["regime"], "regime_right": found["regime"] in regimes}
    row |= {"remedy": first["id"], "remedy_right": right}
    if remedies and right:
        row |= {which: first[f"predicted_{which}_s"] / found["step_s"] for which in ("gain", "gain_low", "gain_high")}
        row |= {"measured": saved, "holds": row["gain_low"] <= saved <= row["gain_high"]}
    return row


def child(words: list[str]):
    """What a Python process of its own prints as JSON, after whatever the program prints; None where it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=True)
        return json.loads(done.stdout[re.search(r"^[{\[]", done.stdout, re.MULTILINE).start() :])
    except (subprocess.SubprocessError, ValueError, AttributeError) as error:
        print(*words, error, str(getattr(error, "stderr", ""))[-300:], file=sys.stderr)
        return None


def turns(path: Path) -> NoReturn:
    """Lower quartile of the seconds of a step and of the fixed one, which take turns: load only adds."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    steps, times = (module.make_step(), module.make_step_fixed()), ([], [])
    begun = perf_counter()
    while len(times[1]) < 9 or (len(times[1]) < 60 and perf_counter() - begun < 5):
        for step, seconds in zip(steps, times, strict=True):
            calls = 1 if len(seconds) < 2 else max(1, min(10, int(0.02 / seconds[1])))
            begin = perf_counter()
            for _ in range(calls):
                step()
            seconds.append((perf_counter() - begin) / calls)
    print(f"\n{json.dumps([statistics.quantiles(seconds[2:])[0] for seconds in times])}", flush=True)
    os._exit(0)  # whatever threads the program has


def measured(path: Path, again: bool) -> tuple[float, float]:
    file = FOLDER / "promises.csv"
    rows = csv.DictReader(file.read_text().splitlines()) if file.exists() else ()
    known = {row["program"]: (float(row["step_s"]), float(row["fixed_s"])) for row in rows}
    if again or path.stem not in known:
        known[path.stem] = child([__file__, "--turns", str(path)]) or (math.nan, math.nan)
        table = [(name, *(f"{seconds:.4g}" for seconds in known[name])) for name in sorted(known)]
        write_csv("promises", ("program", "step_s", "fixed_s"), table)
    return known[path.stem]


def line(row) -> str:
    right = ["right" if row[which] else "WRONG" for which in ("regime_right", "remedy_right")]
    gains = "  saves {gain:4.0%} ({gain_low:.0%} to {gain_high:.0%}), measured {measured:4.0%}, holds: {holds}"
    text = f"{row['program']:16} {row['regime']:13} {right[0]}  {row['remedy']:17} {right[1]}"
    return text + (gains.format(**row) if "gain" in row else "")


if __name__ == "__main__":
    sys.exit(turns(Path(sys.argv[2])) if sys.argv[1:2] == ["--turns"] else main())
