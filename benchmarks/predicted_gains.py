"""The gain of torch.compile, predicted beside measured: KernelBench's programs on five kinds of GPU, in five modes.

Reads ``kernelbench/`` in the folder that ROOFLIGHT_DATA names. Each problem is recorded once, as ``rooflight
compile-bench --predict-only`` does, and predicted for each device that it was timed on. ``problems``: a quarter of the
problems in turn is held out, on all machines; ``machines``: each kind of GPU in turn; the correction is learned from
the rest. ``fit`` writes the correction that comes with Rooflight, learned from all.

Each program is asked with the typical host, which the command assumes, and with the one fitted from five of its
machine's eager programs; the correction learns from both. Rows: op over fused bound alone; the most frequent verdict;
physics alone; corrected.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from csv_results import write_csv
from predictions_on_measured_programs import HOST

import rooflight as rl
from rooflight.front.options import RunOptions
from rooflight.front.targets import record_without_hardware
from rooflight.prediction.fit.wall_times import fit_host
from rooflight.prediction.gain.gain import FILE, FOLDER, Correction, gain_features, learn, most_speedup, verdict_of
from rooflight.prediction.gain.kernels import compiled_work
from rooflight.prediction.gain.walls import MODES, compiled_walls, eager_walls
from rooflight.prediction.model.files import write_manifest
from rooflight.records.files import write_whole
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.host import TYPICAL, Host
from rooflight.sources.workloads.errors import RunFailed, TargetError

FOLDS = 4
INTERVAL = (0.05, 0.95)


@dataclass(frozen=True, kw_only=True, eq=False)
class Row:
    """A program in a mode on a machine, asked with a host."""

    set: str
    machine: str
    device: str
    program: str
    mode: str
    typical: bool
    measured: float
    physical: float
    most: float
    bounds: float
    features: np.ndarray

    @property
    def target(self) -> float:
        return float(np.log(self.measured / self.physical))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("problems", "machines", "fit"))
    options = parser.parse_args()
    data = Path(os.environ.get("ROOFLIGHT_DATA", "")) / "kernelbench"
    if not (data / "times.csv").is_file():
        parser.error("set ROOFLIGHT_DATA to the folder that has kernelbench/times.csv")
    rows = list(asked(data))
    part = by_device if options.what == "machines" else by_problem(rows)
    predicted = np.exp(held_out(rows, part))
    found = list(table(rows, predicted))
    for row in (HEADER, *found):
        print(*row, sep="  ")
    write_csv(f"gains_gpu_{'machines' if options.what == 'machines' else 'problems'}", HEADER, found)
    if options.what == "fit":
        fit(rows, predicted, data)
    return 0


def asked(data: Path) -> Iterator[Row]:
    """Every program of every machine in every mode that it was timed in, with both hosts."""
    times: dict[tuple[str, str, str], dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    with (data / "times.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            program = f"{row['level']}/{row['problem']}"
            times[row["set"], row["machine"], row["device"]][program][row["mode"]] = float(row["mean_ms"]) * 1e-3
    sessions: dict[Path, rl.Session | None] = {}
    predictor = rl.Predictor()
    for (name, machine, device), programs in times.items():
        analyses = {}
        for program in [each for each, found in programs.items() if "eager" in found]:
            session = recorded(data, Path(name, program), sessions)
            if session is not None:
                analyses[program] = rl.analyze(session, device, predictor=predictor)
        fitted = fit_host([(analyses[each], programs[each]["eager"]) for each in HOST if each in analyses])
        for program, analysis in analyses.items():
            work = compiled_work(analysis, analysis.predicted_op_s)
            for host in (TYPICAL, fitted):
                yield from rows_of((name, machine, device, program), analysis, work, host, programs[program])


def recorded(data: Path, file: Path, sessions: dict[Path, rl.Session | None]) -> rl.Session | None:
    if file not in sessions:
        print(f"\rrecording {str(file)[:90]:90}", end="", file=sys.stderr, flush=True)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the problems' own
                sessions[file] = record_without_hardware(str(data / file), RunOptions(), lambda _: None).session
        except (TargetError, RunFailed) as error:
            print(f"\nnot recorded: {file}: {error}", file=sys.stderr)
            sessions[file] = None
    return sessions[file]


def rows_of(
    where: tuple[str, str, str, str], analysis: Analysis, work, host: Host, times: dict[str, float]
) -> Iterator[Row]:
    eager = eager_walls(analysis, host)
    for mode in MODES:
        measured_s = times.get(mode if mode == "cudagraphs" else f"inductor_{mode}")
        if measured_s is None:
            continue
        compiled = compiled_walls(analysis, work, mode, host)
        yield Row(
            set=where[0],
            machine=where[1],
            device=where[2],
            program=where[3],
            mode=mode,
            typical=host is TYPICAL,
            measured=times["eager"] / measured_s,
            physical=eager.wall_s / compiled.wall_s,
            most=most_speedup(analysis, eager),
            bounds=analysis.totals.op_bound_s / max(analysis.program.fused_bound_s, 1e-12),
            features=gain_features(analysis, work, mode, host, eager, compiled),
        )


def by_device(row: Row) -> object:
    return row.device


def by_problem(rows: Sequence[Row]) -> Callable[[Row], object]:
    programs = sorted({row.program for row in rows})
    order = np.random.default_rng(0).permutation(len(programs))
    fold = dict(zip(programs, (order % FOLDS).tolist(), strict=True))
    return lambda row: fold[row.program]


def held_out(rows: Sequence[Row], part: Callable[[Row], object]) -> np.ndarray:
    """Logarithms of the predicted gains, each by a correction that learned from the other parts."""
    features, target = np.array([row.features for row in rows]), np.array([row.target for row in rows])
    parts = [part(row) for row in rows]
    found = np.log([row.physical for row in rows])
    for each in sorted(set(parts), key=str):
        out = np.array([one == each for one in parts])
        found[out] += learn(features[~out], target[~out]).predict(features[out])
    return np.minimum(found, np.log([row.most for row in rows]))


def fit(rows: Sequence[Row], predicted: np.ndarray, data: Path) -> None:
    """Write the correction that comes with Rooflight, its intervals from the programs held out."""
    off = np.log([row.measured for row in rows]) - np.log(predicted)
    intervals = {}
    for mode in MODES:
        low, high = np.quantile(off[[row.mode == mode for row in rows]], INTERVAL)
        intervals[mode] = (min(0.0, float(low)), max(0.0, float(high)))
    trees = learn(np.array([row.features for row in rows]), np.array([row.target for row in rows]))
    FOLDER.mkdir(exist_ok=True)
    write_whole(FOLDER / FILE, Correction(trees=trees, intervals=intervals).encode())
    write_manifest(FOLDER, {FILE: "torch.compile"}, [data / "times.csv"])


HEADER = ("host", "set", "machine", "mode", "programs", "clear", "all", "median error", "bounds", "physics", "majority")


def table(rows: Sequence[Row], predicted: np.ndarray) -> Iterator[tuple[str, ...]]:
    """Scores of each machine and mode with either host, and their means; shares of 1."""
    for typical in (True, False):
        host = "typical" if typical else "fitted"
        groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
        for number, row in enumerate(rows):
            if row.typical == typical:
                groups[row.set, row.machine, row.mode].append(number)
        scores = []
        for name, numbers in sorted(groups.items()):
            scores.append(scored([rows[number] for number in numbers], predicted[numbers]))
            yield host, *name, str(len(numbers)), *(f"{score:.3f}" for score in scores[-1])
        means = np.mean(scores, axis=0)
        yield host, "mean", "", "", str(sum(map(len, groups.values()))), *(f"{score:.3f}" for score in means)


def scored(rows: Sequence[Row], predicted: np.ndarray) -> np.ndarray:
    """Shares of right verdicts of clear gains (outside 0.9 to 1.1) and of all; median error; right ones of others."""
    measured = [row.measured for row in rows]
    verdicts = [verdict_of(gain) for gain in measured]
    right = np.array([verdict_of(gain) == said for gain, said in zip(predicted, verdicts, strict=True)])
    clear = np.array([not 0.9 <= gain <= 1.1 for gain in measured])
    by_bounds = np.mean([verdict_of(row.bounds) == said for row, said in zip(rows, verdicts, strict=True)])
    by_physics = np.mean([verdict_of(row.physical) == said for row, said in zip(rows, verdicts, strict=True)])
    majority = Counter(verdicts).most_common(1)[0][1] / len(verdicts)
    error = np.median(np.abs(predicted / np.array(measured) - 1))
    return np.array([right[clear].mean(), right.mean(), error, by_bounds, by_physics, majority])


if __name__ == "__main__":
    sys.exit(main())
