"""Rooflight's bytes beside the GPU's own counters.

    python benchmarks/gpu/bytes_against_counters.py [--json PATH] [--seconds 140]

Each case runs once under Nsight Compute, which reads what went through the memory's pins. A ratio (counted / Rooflight)
below 1 would mean that Rooflight asks for more bytes than the op needs, so that a bound could be beaten; above 1 the
kernel moves more than it must. Where ncu is missing or may not read counters, that is said, and only times are shown.

ncu flushes the caches before every kernel; what a kernel leaves unwritten in L2 when it ends is not in its count, so up
to an L2 (50 MB) of the written bytes may be missing.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cases import CASES

METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum", "gpu__time_duration.sum")
MARK = "digamma"  # part of the name of a kernel that no case runs: it parts the cases
SCALE = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0,
         "nsecond": 1e-9, "usecond": 1e-6, "msecond": 1e-3, "second": 1.0}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What the counters saw of one case, all its kernels together."""

    kernels: int
    bytes_read: float
    bytes_written: float
    kernel_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One case: Rooflight's figures, the clock's, and the counters' where they could be read."""

    case: str
    bytes_read: float
    bytes_written: float
    bound_s: float
    measured_s: float
    counted: Counted | None = None
    error: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--seconds", type=float, default=140, help="time for ncu")
    parser.add_argument("--under-ncu", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.under_ncu:
        signal.alarm(int(options.seconds) + 5)  # ncu may be gone by then, and the GPU is wanted
        run_marked()
        return 0
    import torch

    if not torch.cuda.is_available():
        print("torch sees no CUDA device: nothing to compare")
        return 1
    counted, reason = read_counters(options.seconds)
    rows = list(rooflight_rows(counted))
    print_table(rows, reason)
    if options.json:
        content = {"counters": reason or "read by ncu", "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    return 0 if all(not row.error for row in rows) else 1


def run_marked() -> None:
    """Run under ncu: every case warms up unseen, then runs once, after the kernel that marks its beginning."""
    import torch

    mark = torch.rand(1, device="cuda")
    torch.digamma(mark)
    for name, make in CASES.items():
        try:
            with torch.no_grad():
                run = make()
                run()
                torch.cuda.synchronize()
                torch.cuda.profiler.start()
                torch.digamma(mark)
                run()
                torch.cuda.synchronize()
                torch.cuda.profiler.stop()
        except RuntimeError as error:
            print(f"{name}: {error}", file=sys.stderr)
            torch.cuda.profiler.start()
            torch.digamma(mark)  # the cases after it keep their places
            torch.cuda.profiler.stop()
        run = None
        torch.cuda.empty_cache()


def read_counters(seconds: float) -> tuple[dict[str, Counted], str]:
    """Counts by case; where there are none, the reason."""
    ncu = shutil.which("ncu") or next((str(path) for path in sorted(Path("/usr/local").glob("cuda*/bin/ncu"))), None)
    if ncu is None:
        return {}, "ncu is not installed"
    command = [ncu, "--metrics", ",".join(METRICS), "--clock-control", "none", "--profile-from-start", "off"]
    command += ["--csv", "--print-units", "base", sys.executable, str(Path(__file__).resolve()), "--under-ncu"]
    command += ["--seconds", str(seconds)]
    # files and not pipes: a program that outlives ncu would keep a pipe open, and us waiting
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        try:
            code = subprocess.run(command, stdout=out, stderr=errors, timeout=seconds, check=False).returncode
            ended = f"exit {code}"
        except subprocess.TimeoutExpired:
            ended = f"stopped after {seconds:.0f} s"
        except OSError as error:
            return {}, f"ncu does not start: {error.strerror}"
        for file in (out, errors):
            file.seek(0)
        text, complaints = out.read(), errors.read()
    counts = parse(text)
    if not counts:
        said = [line for line in (text + complaints).splitlines() if "ERROR" in line or "rror:" in line]
        return {}, f"ncu read no counters ({ended}): {' '.join(said[:2]) or 'no message'}"
    return counts, ""


def parse(text: str) -> dict[str, Counted]:
    """ncu's CSV, one row a kernel and metric, summed by case. A wide layout (one row a kernel) is understood too."""
    lines = text.splitlines()
    start = next((index for index, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return {}
    kernels: dict[int, tuple[str, dict[str, float]]] = {}
    units: dict[str, str] = {}
    for row in csv.DictReader(lines[start:]):
        if not (row.get("ID") or "").isdigit():
            units = {name: row.get(name) or "" for name in METRICS}  # the second line of the wide layout
            continue
        _, values = kernels.setdefault(int(row["ID"]), (row["Kernel Name"], {}))
        if "Metric Name" in row:
            if row["Metric Name"] in METRICS:
                values[row["Metric Name"]] = number(row["Metric Value"]) * SCALE[row["Metric Unit"]]
        else:
            values |= {name: number(row[name]) * SCALE[units[name]] for name in METRICS if row.get(name)}
    return dict(by_case([kernels[number] for number in sorted(kernels)]))


def by_case(kernels: list[tuple[str, dict[str, float]]]) -> Iterator[tuple[str, Counted]]:
    groups: list[list[dict[str, float]]] = []
    for name, values in kernels:
        if MARK in name:
            groups.append([])
        elif groups:
            groups[-1].append(values)
    for case, group in zip(CASES, groups, strict=False):
        if group:
            read, written, kernel_s = (sum(values.get(metric, 0.0) for values in group) for metric in METRICS)
            yield case, Counted(kernels=len(group), bytes_read=read, bytes_written=written, kernel_s=kernel_s)


def number(text: str) -> float:
    return float(text.replace(",", ""))


def rooflight_rows(counted: dict[str, Counted]) -> Iterator[Row]:
    import torch

    import rooflight as rl
    from rooflight.hardware.machine.timing import CudaEvents, measure

    device = rl.current_device("cuda")
    for case, make in CASES.items():
        try:
            with torch.no_grad():
                run = make()
                run()
                with rl.record() as recording:
                    run()
                totals = rl.analyze(recording.session, device=device).totals
                measured_s = measure(run, clock=CudaEvents(), box_s=0.5).median_s
        except Exception as error:  # one case that fails must not take the others with it
            text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            yield Row(case=case, bytes_read=0, bytes_written=0, bound_s=0, measured_s=0, error=text)
            continue
        finally:
            run = None
            torch.cuda.empty_cache()
        yield Row(
            case=case,
            bytes_read=totals.bytes_read,
            bytes_written=totals.bytes_written,
            bound_s=totals.op_bound_s,
            measured_s=measured_s,
            counted=counted.get(case),
        )


def print_table(rows: list[Row], reason: str) -> None:
    heads = ("case", "read", "written", "pins read", "pins written", "ratio", "bound", "measured", "of bound", "GB/s")
    table: list[tuple[Any, ...]] = [heads]
    for row in rows:
        if row.error:
            table.append((row.case, row.error, *[""] * 8))
            continue
        moved, seen = row.bytes_read + row.bytes_written, row.counted
        table.append(
            (
                row.case,
                f"{row.bytes_read / 1e6:.1f}",
                f"{row.bytes_written / 1e6:.1f}",
                f"{seen.bytes_read / 1e6:.1f}" if seen else "-",
                f"{seen.bytes_written / 1e6:.1f}" if seen else "-",
                f"{(seen.bytes_read + seen.bytes_written) / moved:.3f}" if seen and moved else "-",
                f"{row.bound_s * 1e6:.1f}",
                f"{row.measured_s * 1e6:.1f}",
                f"{row.bound_s / row.measured_s:.1%}",
                f"{moved / row.measured_s / 1e9:.0f}",
            )
        )
    print("Bytes in MB, times in microseconds. read, written: Rooflight's; pins: the memory's counters (ncu);")
    print("ratio: pins / Rooflight; measured: median of CUDA events; GB/s: Rooflight's bytes / measured.")
    if reason:
        print(f"NO COUNTERS: {reason}. Times and achieved bandwidth only.")
    good = [cells for cells, row in zip(table[1:], rows, strict=True) if not row.error]
    widths = [max(len(str(cells[column])) for cells in [heads, *good]) for column in range(len(heads))]
    for cells in table:
        line = [str(cells[0]).ljust(widths[0])]
        line += [str(cell).rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        print("  ".join(line).rstrip())


if __name__ == "__main__":
    sys.exit(main())
