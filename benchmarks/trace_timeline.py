"""Timelines of real traces beside those that TraceLens made of them (traces/tracelens/*.gpu_timeline.csv).

    ROOFLIGHT_DATA=... python benchmarks/trace_timeline.py

TraceLens looks at the work that an op of the host launched within the trace, from the first such piece to the end of
the last: ``timeline.launched``. Rooflight's own timeline has all work, and the whole trace.
"""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path

import rooflight as rl

ROWS = {
    "computation_time": "compute_s",
    "exposed_comm_time": "exposed_communication_s",
    "exposed_memcpy_time": "exposed_copy_s",
    "busy_time": "busy_s",
    "idle_time": "idle_s",
    "total_time": "wall_s",
    "total_comm_time": "communication_s",
    "total_memcpy_time": "copy_s",
}


def main() -> None:
    """Print the two beside each other."""
    data = Path(os.environ.get("ROOFLIGHT_DATA", "")) / "traces"
    tables = sorted((data / "tracelens").glob("*.gpu_timeline.csv"))
    if not tables:
        sys.exit("no traces: set ROOFLIGHT_DATA to the folder that has traces/tracelens")
    print("| trace | what | TraceLens | Rooflight | difference |\n|---|---|---|---|---|")
    for table in tables:
        name = table.name.removesuffix(".gpu_timeline.csv")
        timeline = rl.read_trace(data / f"{name}.json.gz").measurement.timeline
        found = timeline.launched
        with table.open() as file:
            rows = [row for row in csv.DictReader(file) if row.get("is_recompute", "False") == "False"]
        for row in rows:
            theirs, ours = float(row["time ms"]), getattr(found, ROWS[row["type"]]) * 1e3
            if max(theirs, ours) > 1e-3:
                apart = f"{abs(ours - theirs) / max(theirs, ours):.1%}"
                print(f"| {name} | {row['type']} | {theirs:.3f} ms | {ours:.3f} ms | {apart} |")


if __name__ == "__main__":
    main()
