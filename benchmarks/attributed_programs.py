"""Sessions of KernelBench's programs with times of their ops, for ``rooflight fit``: out of each program's wall time.

``python benchmarks/attributed_programs.py FOLDER`` writes one file per program and machine. How a wall time is divided
among ops: ``rooflight.prediction.fit.wall_times``; with the models that come with Rooflight, or of ``--models``, or
with ``--fit`` of a coarse fit of the tables and traces, and the host that fits five programs of the machine. Left out
are programs whose time no times of their ops explain.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from predictions_on_measured_programs import HOST, Time, eager_times, recorded
from taught import coarse, measured_traces

import rooflight as rl
from rooflight.prediction.fit.wall_times import attributed, fit_host
from rooflight.roofline.analysis import Analysis

ANOTHER_DTYPE = (Path("large", "level1/97_ScaledDotProductAttention.py"),)
"""Programs that were timed in another dtype than their files have."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the sessions go")
    parser.add_argument("--models", type=Path, help="attribute with the models of this folder")
    parser.add_argument("--fit", action="store_true", help="attribute with models fitted from tables and traces")
    options = parser.parse_args()
    root = Path(os.environ.get("ROOFLIGHT_DATA", ""))
    data = root / "kernelbench"
    if not (data / "times.csv").is_file():
        parser.error("set ROOFLIGHT_DATA to the folder that has kernelbench/times.csv")
    if options.fit:
        predictor = coarse(root, list(measured_traces(root).values()))
    else:
        predictor = rl.Predictor.load(options.models) if options.models else rl.Predictor()
    times = eager_times(data)
    sessions = dict(recorded(data, {time.file for time in times}))
    options.folder.mkdir(parents=True, exist_ok=True)
    found = explained(times, sessions, predictor)
    for time, session in found.items():
        name = f"{time.set}-{time.machine}-{time.program.removesuffix('.py').replace('/', '-')}.session"
        session.save(options.folder / name)
    print(f"{len(found)} of {len(times)} times explained by their ops")
    return 0


def explained(
    times: Iterable[Time], sessions: Mapping[Path, rl.Session], predictor: rl.Predictor
) -> dict[Time, rl.Session]:
    """The sessions, with times of ops and the GPU's name, of the programs whose wall time their ops explain."""
    by_machine: dict[tuple[str, str], list[tuple[Time, Analysis]]] = defaultdict(list)
    for time in times:
        if time.file in sessions:
            analysis = rl.analyze(sessions[time.file], time.device, predictor=predictor)
            by_machine[time.set, time.machine].append((time, analysis))
    found: dict[Time, rl.Session] = {}
    for measured in by_machine.values():
        host = fit_host([(analysis, time.mean_s) for time, analysis in measured if time.program in HOST])
        for time, analysis in measured:
            if time.file in ANOTHER_DTYPE:
                continue
            try:
                session = attributed(analysis.with_host(host), time.mean_s)
            except ValueError:
                continue
            where = {"device_kind": "cuda", "gpu": analysis.device.match[0]}
            # the machine that recorded it is not the one that took the time
            known = {name: fact for name, fact in session.environment.items() if name != "fingerprint"}
            found[time] = replace(session, environment={**known, **where})
    return found


if __name__ == "__main__":
    sys.exit(main())
