"""Predicted wall time of KernelBench's programs beside measured: eager, on five kinds of GPU, on six machines.

Reads ``kernelbench/`` in the folder that ROOFLIGHT_DATA names. Each problem is recorded once, without hardware, and
predicted for each machine that it was timed on; the host of a machine is fitted from five of its programs (``HOST``),
which are not scored. A time is the mean of 100 trials, between two CUDA events around one eager call.

The models are those that come with Rooflight, or of ``--models``. ``--json`` writes every row, ``--worst N`` prints the
N programs of each set that are farthest off.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import rooflight as rl
from rooflight.prediction.fit.wall_times import fit_host
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.host import Host
from rooflight.sources.workloads.errors import RunFailed, TargetError
from rooflight.sources.workloads.problem_step import load_problem

HOST = (
    "level1/19_ReLU.py",
    "level1/97_CosineSimilarityLoss.py",
    "level2/81_Gemm_Swish_Divide_Clamp_Tanh_Clamp.py",
    "level2/95_Matmul_Add_Swish_Tanh_GELU_Hardtanh.py",
    "level3/3_DeepNarrowMLP.py",
)
"""Of each machine, the host is fitted from these: many ops, little work."""


@dataclass(frozen=True, kw_only=True)
class Time:
    """A program as it was timed on a machine, in seconds."""

    set: str
    program: str
    machine: str
    device: str
    mean_s: float

    @property
    def file(self) -> Path:
        return Path(self.set, self.program)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A program on a machine: measured, and predicted: the device alone, with its host and with the ``typical`` one."""

    set: str
    program: str
    machine: str
    measured_s: float
    device_s: float
    wall_s: float
    typical_s: float
    low_s: float
    high_s: float
    launch_s: float
    uncosted: int

    @property
    def error(self) -> float:
        return abs(self.wall_s / self.measured_s - 1)

    @property
    def held(self) -> bool:
        return self.low_s <= self.measured_s <= self.high_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, help="predict with the models of this folder")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--worst", type=int, default=0, help="print so many programs of each set and machine")
    options = parser.parse_args()
    folder = Path(os.environ.get("ROOFLIGHT_DATA", "")) / "kernelbench"
    if not (folder / "times.csv").is_file():
        parser.error("set ROOFLIGHT_DATA to the folder that has kernelbench/times.csv")
    predictor = rl.Predictor.load(options.models) if options.models else rl.Predictor()
    times = eager_times(folder)
    sessions = dict(recorded(folder, {time.file for time in times}))
    rows = scored(times, sessions, predictor)
    print("\n".join(markdown(rows, options.worst)))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 0


def eager_times(folder: Path) -> list[Time]:
    with (folder / "times.csv").open(newline="") as file:
        return [
            Time(
                set=row["set"],
                program=f"{row['level']}/{row['problem']}",
                machine=row["machine"],
                device=row["device"],
                mean_s=float(row["mean_ms"]) * 1e-3,
            )
            for row in csv.DictReader(file)
            if row["mode"] == "eager"
        ]


def recorded(folder: Path, files: Iterable[Path]) -> Iterator[tuple[Path, rl.Session]]:
    """The sessions of problems, but of those that cannot be recorded here."""
    for file in sorted(files):
        print(f"\rrecording {str(file)[:90]:90}", end="", file=sys.stderr, flush=True)
        try:
            step = load_problem(folder / file)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the problems' own
                with rl.record(step.model) as recording:
                    step.run()
            yield file, recording.session
        except (TargetError, RunFailed) as error:
            print(f"\nnot recorded: {file}: {error}", file=sys.stderr)
    print(file=sys.stderr)


def scored(times: Iterable[Time], sessions: Mapping[Path, rl.Session], predictor: rl.Predictor) -> list[Row]:
    """Every program of every machine, but those that its host is fitted from."""
    by_machine: dict[tuple[str, str], list[tuple[Time, Analysis]]] = defaultdict(list)
    for time in times:
        if time.file in sessions:
            analysis = rl.analyze(sessions[time.file], time.device, predictor=predictor)
            by_machine[time.set, time.machine].append((time, analysis))
    rows = []
    for measured in by_machine.values():
        host = fit_host([(analysis, time.mean_s) for time, analysis in measured if time.program in HOST])
        rows += [row_of(time, analysis, host) for time, analysis in measured if time.program not in HOST]
    return rows


def row_of(time: Time, analysis: Analysis, host: Host) -> Row:
    totals = analysis.with_host(host).totals
    predicted, wall = totals.predicted, totals.predicted_wall
    assert predicted is not None
    assert wall is not None
    return Row(
        set=time.set,
        program=time.program,
        machine=time.machine,
        measured_s=time.mean_s,
        device_s=predicted.time_s,
        wall_s=wall.time_s,
        typical_s=analysis.totals.predicted_wall.time_s,
        low_s=wall.low_s,
        high_s=wall.high_s,
        launch_s=host.launch_s,
        uncosted=totals.calls - predicted.calls,
    )


def markdown(rows: list[Row], worst: int) -> Iterator[str]:
    errors = "median error | with the typical host | mean error"
    yield f"| set | machine | level | programs | launch | {errors} | rank correlation | 90 % holds |"
    yield "|---|---|---|---:|---:|---:|---:|---:|---:|---:|"
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        for level in ("all", row.program.split("/", 1)[0].removeprefix("level")):
            groups[row.set, row.machine, level].append(row)
    for (name, machine, level), group in sorted(groups.items(), key=lambda item: (*item[0][:2], item[0][2] != "all")):
        yield (
            f"| {name} | {machine} | {level} | {len(group)} | {group[0].launch_s * 1e6:.1f} µs "
            f"| {statistics.median(row.error for row in group):.1%} "
            f"| {statistics.median(abs(row.typical_s / row.measured_s - 1) for row in group):.1%} "
            f"| {statistics.mean(row.error for row in group):.1%} "
            f"| {rank_correlation(group):.3f} | {statistics.mean(row.held for row in group):.0%} |"
        )
    for (name, machine, level), group in sorted(groups.items()):
        if worst and level == "all":
            yield f"\n{name}, {machine}:\n"
            for row in sorted(group, key=lambda row: -abs(np.log(row.wall_s / row.measured_s)))[:worst]:
                yield (
                    f"- {row.program}: predicted {row.wall_s * 1e3:.3g} ms (device {row.device_s * 1e3:.3g}), "
                    f"measured {row.measured_s * 1e3:.3g} ms"
                )


def rank_correlation(rows: list[Row]) -> float:
    """Spearman's."""
    ranks = [np.argsort(np.argsort(each)) for each in ([row.wall_s for row in rows], [row.measured_s for row in rows])]
    return float(np.corrcoef(*ranks)[0, 1])


if __name__ == "__main__":
    sys.exit(main())
