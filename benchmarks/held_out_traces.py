"""Predicted device time of each trace, by models that learned from the tables, the other traces and the programs.

``total`` is predicted / measured - 1 of all ops that have a bound, ``per op`` the sum over kinds of calls of
|predicted - measured| over the measured sum. Collectives, in which a rank waits for others, are left out. ``--ops N``
lists the N kinds of calls of each trace that are farthest off.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from attributed_programs import explained
from predictions_on_measured_programs import eager_times, recorded
from taught import Tables, coarse, measured_traces

import rooflight as rl
from rooflight.devices import get
from rooflight.hardware.network.collectives import kind_of
from rooflight.prediction.read.measured import MeasuredOps, measured_ops
from rooflight.roofline.bound import as_it_ran


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", type=int, default=0, help="list so many kinds of calls of each trace")
    parser.add_argument("--no-programs", action="store_true", help="learn from tables and traces alone")
    options = parser.parse_args()
    root = Path(os.environ.get("ROOFLIGHT_DATA", ""))
    if not (root / "traces").is_dir():
        parser.error("set ROOFLIGHT_DATA to the folder that has traces")
    tables, traces = Tables.learned(root), measured_traces(root)
    times = [] if options.no_programs else eager_times(root / "kernelbench")
    sessions = dict(recorded(root / "kernelbench", {time.file for time in times}))
    print("| trace | device | ms | total | per op |\n|---|---|---:|---:|---:|")
    for name, trace in traces.items():
        others = [each for other, each in traces.items() if other != name]
        found = explained(times, sessions, coarse(root, others)) if times else {}
        programs = [measured_ops(session, get(time.device), time.file) for time, session in found.items()]
        rows = list(beside(tables.with_ops([*others, *programs]), trace))
        measured, predicted = (np.array([row[place] for row in rows]) for place in (1, 2))
        off = np.abs(predicted - measured)
        print(
            f"| {name.removesuffix('.json.gz')} | {trace.device.name} | {measured.sum() * 1e3:.3f} "
            f"| {predicted.sum() / measured.sum() - 1:+.0%} | {off.sum() / measured.sum():.0%} |",
            flush=True,
        )
        for place in np.argsort(-off)[: options.ops]:
            print(f"    {rows[place][0]}: {predicted[place] * 1e6:.1f} us, measured {measured[place] * 1e6:.1f} us")
    return 0


def beside(predictor: rl.Predictor, trace: MeasuredOps) -> Iterator[tuple[str, float, float]]:
    """Each kind of call with the seconds of all its calls, measured and predicted."""
    for row in trace.rows:
        if kind_of(row.op.name) is not None:
            continue
        estimate = predictor.predict_many([(row.op,)], as_it_ran(trace.device, row.precision))[0]
        if estimate is not None:
            shapes = " ".join("x".join(map(str, shape)) for shape in row.op.input_shapes[:3])
            calls = len(row.samples_s)
            yield (
                f"{row.op.name} {shapes}, {calls} calls",
                float(row.samples_s.sum()),
                calls * estimate.on_device.time_s,
            )


if __name__ == "__main__":
    sys.exit(main())
