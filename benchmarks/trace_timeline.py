"""Timelines of real traces beside those that TraceLens made of them (traces/tracelens/*.gpu_timeline.csv).

    ROOFLIGHT_DATA=... python benchmarks/trace_timeline.py

TraceLens looks at the work that an op of the host launched within the trace, from the first such piece to the end of
the last. The same work is taken here for the comparison; Rooflight's own timeline has all work, and the whole trace.
"""

from __future__ import annotations

import csv
import os
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from rooflight.records.timeline import Timeline
from rooflight.traces.nesting import nested
from rooflight.traces.ownership import owners
from rooflight.traces.timeline import timeline_of
from rooflight.traces.trace import Trace, load_trace

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


def launched_in(trace: Trace) -> Trace:
    """The trace with the work alone that an op launched, and nothing of the host, so that the work is its whole."""
    nesting = nested(trace)
    owned = owners(trace, nesting, np.zeros(len(trace.ops), dtype=np.bool_))
    chosen = owned.launched_by >= 0
    work = replace(trace.work, **{each.name: getattr(trace.work, each.name)[chosen] for each in fields(trace.work)})
    none = {each.name: getattr(trace.ops, each.name)[:0] for each in fields(trace.ops)}
    calls = {each.name: getattr(trace.calls, each.name)[:0] for each in fields(trace.calls)}
    return replace(trace, work=work, ops=replace(trace.ops, **none), calls=replace(trace.calls, **calls))


def timeline(trace: Trace) -> Timeline:
    """The timeline of a trace that has work."""
    none = np.zeros(len(trace.ops), dtype=np.bool_)
    found = timeline_of(trace, owners(trace, nested(trace), none), none)
    assert found is not None
    return found


def main() -> None:
    """Print the two beside each other."""
    data = Path(os.environ.get("ROOFLIGHT_DATA", "")) / "traces"
    tables = sorted((data / "tracelens").glob("*.gpu_timeline.csv"))
    if not tables:
        sys.exit("no traces: set ROOFLIGHT_DATA to the folder that has traces/tracelens")
    print("| trace | what | TraceLens | Rooflight | difference |\n|---|---|---|---|---|")
    for table in tables:
        name = table.name.removesuffix(".gpu_timeline.csv")
        found = timeline(launched_in(load_trace(data / f"{name}.json.gz")))
        with table.open() as file:
            rows = [row for row in csv.DictReader(file) if row.get("is_recompute", "False") == "False"]
        for row in rows:
            theirs, ours = float(row["time ms"]), getattr(found, ROWS[row["type"]]) * 1e3
            if max(theirs, ours) > 1e-3:
                apart = f"{abs(ours - theirs) / max(theirs, ours):.1%}"
                print(f"| {name} | {row['type']} | {theirs:.3f} ms | {ours:.3f} ms | {apart} |")


if __name__ == "__main__":
    main()
