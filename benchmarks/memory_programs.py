"""Peaks of memory of the programs in ``tests/virtual/memory``, and what grows in ``tests/virtual/growth``: how right?

    python benchmarks/memory_programs.py [--only NAME ...]

Each runs for an H100 and an H200 that are not there. The truth of a peak is of an independent counter of storages on
meta tensors (``tests/virtual/memory/counter.py``), over the whole script; that of growth is by hand.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAMS = Path(__file__).parents[1] / "tests" / "virtual"
DEVICES = {"H100-SXM5-80GB": 80 << 30, "H200-SXM-141GB": 141_000_000_000}
MOST_OFF = 0.01


def memory_of(path: Path) -> tuple[dict, list[dict]]:
    """What ``run --on`` says of a script: of its memory, and of each device."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["--on", ",".join(DEVICES), "--save", f"{folder}/one.session", "--json", f"{folder}/one.json"]
        subprocess.run([sys.executable, "-m", "rooflight", "run", *words, path.name], cwd=path.parent, check=False,
                       capture_output=True)  # fmt: skip
        file = Path(folder) / "one.json"
        document = json.loads(file.read_text()) if file.exists() else {"memory": {}, "run": {"on": []}}
    return document["memory"], document["run"]["on"]


def truth(kind: str) -> list[dict[str, str]]:
    return list(csv.DictReader((PROGRAMS / kind / "truth.csv").read_text().splitlines()))


def peaks(only: list[str]) -> None:
    close = fits = count = 0
    for row in truth("memory"):
        if only and not row["program"].startswith(tuple(only)):
            continue
        memory, on = memory_of(PROGRAMS / "memory" / f"{Path(row['program']).stem}.py")
        peak, count = int(row["peak_bytes"]), count + 1
        found = max(memory.get("allocated_bytes", 0), memory.get("peak_bytes", 0))
        off = found / peak - 1
        right = [each["fits"] == (peak <= capacity) for each, capacity in zip(on, DEVICES.values(), strict=False)]
        close, fits = close + (abs(off) <= MOST_OFF), fits + (len(right) == len(DEVICES) and all(right))
        said = "" if all(right) and right else "fits WRONG"
        print(f"{row['program']:40}{peak / 1e9:10.3f} GB{found / 1e9:10.3f} GB{off:+9.2%}  "
              f"{memory.get('phase', 'FAILED'):24} {said}", flush=True)  # fmt: skip
    print(f"within {MOST_OFF:.0%}: {close} of {count}; fits right on both devices: {fits} of {count}")


def growth(only: list[str]) -> None:
    named = quiet = count = others = 0
    for row in truth("growth"):
        if only and not row["program"].startswith(tuple(only)):
            continue
        memory, _ = memory_of(PROGRAMS / "growth" / f"{Path(row['program']).stem}.py")
        grown, expected = memory.get("growth_bytes"), float(row["bytes_per_iteration"])
        owners = [each["owner"] for each in memory.get("growth", ())]
        holder, line = (owners[0]["holder"], owners[0]["where"]["line"]) if owners else ("", 0)
        if not expected:
            others, quiet = others + 1, quiet + (not grown)
        else:
            right = bool(grown) and (line == int(row["line"]))
            count, named = count + 1, named + right
        print(f"{row['program']:36}{expected / 1e6:10.2f} MB{(grown or 0) / 1e6:10.2f} MB  "
              f"{row['holder']}:{row['line']}  {holder}:{line}", flush=True)  # fmt: skip
    print(f"line of what grows: {named} of {count}; quiet where nothing grows: {quiet} of {others}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", nargs="*", default=[])
    only = parser.parse_args().only
    if not only or any(re.match("m", each) for each in only):
        peaks(only)
    if not only or any(re.match("[gh]", each) for each in only):
        growth(only)
