"""Does any measured program beat its bound, and how tight are the bounds? KernelBench's problems on five GPUs.

Reads ``kernelbench/`` in the folder that ROOFLIGHT_DATA names: ``times.csv`` and the problems' files. Each problem is
recorded once, without hardware, and bounded for each device that it was timed on. A time is the fastest of its trials.

What a time is compared with: kernels run one by one (eager, cudagraphs) with the op bound, compiled ones with the fused
bound, since merged kernels move less than the ops do; all with the program bound. A program that is faster has a cause:

- cache: not faster than the bound with all that the device's last cache can hold in it (``ProgramBounds.warm``). The
  trials repeat one call on the same tensors.
- clock: not faster than the bound at the device's highest clock, where its peaks are quoted at a lower one.
- float16: timed in float16, as the data's SOURCE.md says, though its file says float32.

``--narrowing`` compares the program and the fused bound of each problem on an H100 with those of commit 88ffe20, which
followed parts of tensors exactly (``benchmarks/results/program_bounds.csv``): they are no higher, and within 1 %.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from csv_results import write_csv

import rooflight as rl
from rooflight.devices import get
from rooflight.records.session import Session
from rooflight.roofline.analysis import Analysis
from rooflight.sources.workloads.errors import RunFailed, TargetError
from rooflight.sources.workloads.problem_step import load_problem

ONE_BY_ONE = ("eager", "cudagraphs")
TIMED_IN_FLOAT16 = ("large", "97_ScaledDotProductAttention.py")
LEAST_DIGIT = 0.005  # times are printed with three digits


@dataclass(frozen=True, kw_only=True)
class Row:
    """One program on one machine in one mode: seconds. ``beaten``: the bound it is faster than, and why."""

    set: str
    level: str
    problem: str
    machine: str
    device: str
    mode: str
    best_s: float
    op_bound_s: float
    fused_bound_s: float
    program_bound_s: float
    beaten: str
    cause: str

    @property
    def case(self) -> str:
        return f"{self.set} {self.level} {self.problem.removesuffix('.py')} on {self.machine}, {self.mode}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--only", default="", help="problems whose path contains this")
    parser.add_argument("--narrowing", action="store_true", help="compare with exact bounds instead of measured times")
    options = parser.parse_args()
    folder = Path(os.environ.get("ROOFLIGHT_DATA", "")) / "kernelbench"
    if not (folder / "times.csv").is_file():
        parser.error("set ROOFLIGHT_DATA to the folder that has kernelbench/times.csv")
    if options.narrowing:
        return compare_with_exact(folder)
    timed = defaultdict(list)
    with (folder / "times.csv").open(newline="") as file:
        for time in csv.DictReader(file):
            timed[Path(time["set"], time["level"], time["problem"])].append(time)
    chosen = {path: times for path, times in sorted(timed.items()) if options.only in str(path)}
    rows: list[Row] = []
    refused: dict[str, str] = {}
    for number, (path, times) in enumerate(chosen.items(), start=1):
        print(f"\r{number} of {len(chosen)} {str(path)[:90]:90}", end="", file=sys.stderr, flush=True)
        try:
            rows += rows_of(folder / path, times)
        except (TargetError, RunFailed) as error:
            refused[str(path)] = str(error)
    print(file=sys.stderr)
    print("\n".join(markdown(rows, refused)))
    if not options.only:
        header = ("set", "machine", "level", "programs", "op bound", "fused bound", "program bound")
        write_csv("kernelbench_bounds", header, tightness(rows))
    if options.json is not None:
        options.json.write_text(json.dumps({"rows": [asdict(row) for row in rows], "refused": refused}, indent=1))
    return 1 if any(row.cause == "unknown" for row in rows) else 0


def compare_with_exact(folder: Path) -> int:
    differ = 0
    with (Path(__file__).parent / "results" / "program_bounds.csv").open(newline="") as file:
        exact = list(csv.DictReader(file))
    for row in exact:
        path = Path(row["set"], row["level"], f"{row['problem']}.py")
        program = rl.analyze(recorded(folder / path), "H100-SXM5-80GB").program
        for name in ("program_bound_s", "fused_bound_s"):
            ratio = getattr(program, name) / float(row[name])
            if not 0.99 <= ratio <= 1.00001:
                differ += 1
                print(f"{path}: {name} is {ratio - 1:+.2%} of the exact one")
    print(f"{len(exact)} programs, {differ} bounds higher or more than 1 % lower")
    return 1 if differ else 0


def recorded(path: Path) -> Session:
    step = load_problem(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the problems' own
        with rl.record(step.model, memory=True) as recording:
            step.run()
    return recording.session


def rows_of(path: Path, times: Iterable[dict[str, str]]) -> Iterator[Row]:
    session = recorded(path)
    analyses: dict[str, Analysis] = {}
    first: Analysis | None = None
    for time in times:
        name = time["device"]
        if name not in analyses:
            analyses[name] = first.on(get(name)) if first else rl.analyze(session, get(name))
            first = first or analyses[name]
        yield row_of(analyses[name], time)


def row_of(analysis: Analysis, time: dict[str, str]) -> Row:
    best_s = float(time["min_ms"]) * 1e-3
    program, warm = analysis.program, analysis.program.warm
    op_bound_s = analysis.totals.op_bound_s
    bounds = [("program", program.program_bound_s, warm.program_bound_s)]
    if time["mode"] in ONE_BY_ONE:
        bounds = [("op", op_bound_s, warm.op_bound_s), *bounds]
    else:
        bounds = [("fused", program.fused_bound_s, warm.fused_bound_s), *bounds]
    slowest_s = best_s * (1 + LEAST_DIGIT)
    beaten = [(name, bound_s, warm_s) for name, bound_s, warm_s in bounds if slowest_s < bound_s]
    return Row(
        **{key: time[key] for key in ("set", "level", "problem", "machine", "device", "mode")},
        best_s=best_s,
        op_bound_s=op_bound_s,
        fused_bound_s=program.fused_bound_s,
        program_bound_s=program.program_bound_s,
        beaten=beaten[-1][0] if beaten else "",
        cause=cause_of(time, slowest_s, beaten, analysis.device.matrix_clock_headroom or 1.0) if beaten else "",
    )


def cause_of(time: dict[str, str], slowest_s: float, beaten: list[tuple[str, float, float]], headroom: float) -> str:
    """The one thing that explains every bound which the time beats."""
    if (time["set"], time["problem"]) == TIMED_IN_FLOAT16:
        return "float16"
    if all(slowest_s >= warm_s for _, _, warm_s in beaten):
        return "cache"
    if all(slowest_s >= bound_s / headroom for _, bound_s, _ in beaten):
        return "clock"
    if all(slowest_s >= warm_s / headroom for _, _, warm_s in beaten):
        return "cache and clock"
    return "unknown"


def markdown(rows: list[Row], refused: dict[str, str]) -> Iterator[str]:
    yield from beaten_table(rows)
    unknown = [row for row in rows if row.cause not in ("", "cache")]
    if unknown:
        yield ""
        yield "| faster than a bound, not from the cache | bound | cause | measured ÷ op, fused, program bound |"
        yield "|---|---|---|---|"
        for row in sorted(unknown, key=lambda row: row.best_s / row.program_bound_s):
            bounds = (row.op_bound_s, row.fused_bound_s, row.program_bound_s)
            shares = ", ".join(f"{row.best_s / bound_s:.2f}" for bound_s in bounds)
            yield f"| {row.case} | {row.beaten} | {row.cause} | {shares} |"
    yield ""
    for problem, reason in refused.items():
        yield f"- not recorded: {problem}: {reason}"


def beaten_table(rows: list[Row]) -> Iterator[str]:
    """How many beat each bound on each machine, and why."""
    causes = sorted({row.cause for row in rows} - {""})
    yield "| set | machine | measured | beat the op bound | fused | program | " + " | ".join(causes) + " |"
    yield "|---|---|---:|---:|---:|---:|" + "---:|" * len(causes)
    groups = defaultdict(list)
    for row in rows:
        groups[row.set, row.machine].append(row)
    for (name, machine), group in sorted(groups.items()):
        by_cause = Counter(row.cause for row in group)
        beaten = [
            sum(row.best_s < row.op_bound_s for row in group if row.mode in ONE_BY_ONE),
            sum(row.best_s < row.fused_bound_s for row in group if row.mode not in ONE_BY_ONE),
            sum(row.best_s < row.program_bound_s for row in group),
        ]
        counts = [len(group), *beaten, *(by_cause[cause] for cause in causes)]
        yield f"| {name} | {machine} | " + " | ".join(map(str, counts)) + " |"


def tightness(rows: list[Row]) -> Iterator[tuple[object, ...]]:
    """Bound ÷ the best time of all modes, medians over programs."""
    best: dict[tuple[str, str, str], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        for level in (row.level, "all"):
            programs = best[row.set, row.machine, level]
            known = programs.get(f"{row.level}/{row.problem}")
            if known is None or row.best_s < known.best_s:
                programs[f"{row.level}/{row.problem}"] = row
    for (name, machine, level), programs in sorted(best.items()):
        shares = [
            statistics.median(getattr(row, bound) / row.best_s for row in programs.values())
            for bound in ("op_bound_s", "fused_bound_s", "program_bound_s")
        ]
        yield name, machine, level, len(programs), *(f"{share:.2f}" for share in shares)


if __name__ == "__main__":
    sys.exit(main())
