"""How much of the kernel time of real traces has a bound, and does any op beat it? The traces of ROOFLIGHT_DATA.

Per trace: the time of the device's work, the part of it that was launched before the trace began, the part without a
host op, and of the rest the share with a bound; what has none, by reason. Then every kind of op that was measured
faster than its bound: warm, if a cache could have served its data (then it is no contradiction), else faster than
light.

Where TraceLens' ``unified_perf_summary.csv`` of a trace is there, FLOPs and bytes of one call beside TraceLens', joined
by op, shapes and dtypes of the inputs. ``--json`` prints all of it as JSON. The figures are in docs/lab/traces.md.

Of all traces, those in ``labelled`` too, benchmarks/results/trace_bounds.csv has the whole step and every kind of op
that was faster than its bound; the exit code is 1 if any was so with its data in a cache as well.
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
from csv_results import write_csv

import rooflight as rl
from rooflight.costs.cost import Uncosted
from rooflight.roofline.analysis import Analysis
from rooflight.sources.traces.ops.arguments import DTYPES, NUMBERS

UNNAMED = "MI300X"
"""The device of labelled traces that name none."""

CAPTURES = {"mi300x_sglang_qwen3-8b_decode_graph": "mi300x_sglang_qwen3-8b_decode_capture_bs32"}
"""Traces with replays of a graph, and that of its capture."""

MODELS = {"b200_vllm_moe_eager": "gpt-oss-120b.json"}
"""Traces of engines, and the config of the model that they ran, by its heads, experts and widths."""

TOLERANCE = 0.005  # TraceLens prints MB with rounding, and floats


@dataclass(frozen=True, kw_only=True)
class Fast:
    """A kind of call measured faster than its bound."""

    op: str
    shapes: tuple[tuple[int, ...], ...]
    calls: int
    bound_us: float
    measured_us: float
    warm: bool


@dataclass(kw_only=True)
class Row:
    """One trace; milliseconds of the device's work."""

    trace: str
    device: str
    work_ms: float
    before_ms: float
    no_op_ms: float
    op_ms: float
    bounded_share: float
    step_ms: float
    program_bound_ms: float
    beats_light: bool
    without: dict[str, float] = field(default_factory=dict)
    fast: list[Fast] = field(default_factory=list)
    beside: list[Beside] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Beside:
    """FLOPs and bytes of one call, by both; MB are of 2^20 bytes, as TraceLens has them."""

    op: str
    shapes: str
    rooflight_gflops: float
    tracelens_gflops: float
    rooflight_mb: float
    tracelens_mb: float

    @property
    def equal_flops(self) -> bool:
        return _equal(self.rooflight_gflops, self.tracelens_gflops)

    @property
    def equal_bytes(self) -> bool:
        return _equal(self.rooflight_mb, self.tracelens_mb)


def _equal(ours: float, theirs: float) -> bool:
    return abs(ours - theirs) <= TOLERANCE * max(ours, theirs)


def row_of(path: Path) -> Row:
    """What one trace gives."""
    name = path.name.removesuffix(".json.gz")
    capture, model = CAPTURES.get(name), MODELS.get(name)
    session = rl.read_trace(
        path,
        capture and path.with_name(f"{capture}.json.gz"),
        model=model and Path(__file__).parents[1] / "tests" / "models" / model,
        whole=True,
    )
    gpu = session.environment.get("gpu", "")
    session = replace(session, environment={**session.environment, "gpu": gpu or UNNAMED})
    analysis = rl.analyze(session)
    without: dict[str, float] = defaultdict(float)
    op_s = bounded_s = 0.0
    for operation in analysis.operations:
        measured = operation.measured_s or 0.0
        op_s += measured
        if isinstance(operation.cost, Uncosted):
            without[f"{operation.signature.name}: {operation.cost.reason}"] += measured
        else:
            bounded_s += measured
    timeline = session.measurement.timeline if session.measurement else None
    before = timeline.before_trace_s if timeline else 0.0
    no_op = timeline.no_host_op_s if timeline else 0.0
    return Row(
        trace=path.name.removesuffix(".json.gz"),
        device=analysis.device.name,
        work_ms=(op_s + before + no_op) * 1e3,
        before_ms=before * 1e3,
        no_op_ms=no_op * 1e3,
        op_ms=op_s * 1e3,
        bounded_share=bounded_s / op_s if op_s else float("nan"),
        step_ms=(analysis.totals.measured_s or float("nan")) * 1e3,
        program_bound_ms=analysis.program.program_bound_s * 1e3,
        beats_light=analysis.beats_light,
        without={name: s / op_s for name, s in sorted(without.items(), key=lambda item: -item[1])},
        fast=list(fast_ops(analysis)),
        beside=list(beside(analysis, path)),
    )


def fast_ops(analysis: Analysis) -> Iterator[Fast]:
    """Kinds of calls of which one was measured faster than the bound."""
    session = analysis.session
    assert session.measurement is not None
    contradicted = {each.signature for each in analysis.contradictions}
    times, numbers = session.measurement.op_s, session.columns.signature
    for number, signature in enumerate(session.signatures):
        bound = analysis.bounds[number]
        mine = times[(numbers == number) & session.counted & (times > 0)]
        if bound is None or not len(mine) or not (mine < bound.time_s).any():
            continue
        yield Fast(
            op=signature.name,
            shapes=signature.input_shapes,
            calls=int((mine < bound.time_s).sum()),
            bound_us=bound.time_s * 1e6,
            measured_us=float(np.min(mine)) * 1e6,
            warm=signature not in contradicted,
        )


def beside(analysis: Analysis, path: Path) -> Iterator[Beside]:
    """FLOPs and bytes beside TraceLens', where it has them and the call has one meaning."""
    file = path.parent / "tracelens" / f"{path.name.removesuffix('.json.gz')}.unified_perf_summary.csv"
    if not file.exists():
        return
    ours: dict[_Key, set[tuple[int, int]]] = defaultdict(set)
    for operation in analysis.operations:
        cost, op = operation.cost, operation.signature
        if not isinstance(cost, Uncosted):
            key = op.name, tuple((tensor.shape, tensor.dtype) for tensor in op.inputs)
            ours[key].add((cost.matrix_flops or cost.vector_flops, cost.bytes_moved))
    with file.open(newline="") as lines:
        for line in csv.DictReader(lines):
            if not line.get("GFLOPS") or line.get("has_perf_model") != "True":
                continue
            counted = next((ours[key] for key in _keys(line) if key in ours), set())
            if len(counted) == 1:
                ((flops, moved),) = counted
                yield Beside(
                    op=line["name"],
                    shapes=line["Input Dims"],
                    rooflight_gflops=flops * 1e-9,
                    tracelens_gflops=float(line["GFLOPS"]),
                    rooflight_mb=moved / 2**20,
                    tracelens_mb=float(line["Data Moved (MB)"] or "nan"),
                )


_Key = tuple[str, tuple[tuple[tuple[int, ...], str], ...]]


def _keys(line: Mapping[str, str]) -> Iterator[_Key]:
    """What a call of TraceLens can be here: a number of Python's is a tensor without dimensions there."""
    shapes, kinds = ast.literal_eval(line["Input Dims"]), ast.literal_eval(line["Input type"])
    tensors = [(tuple(shape), DTYPES[kind]) for shape, kind in zip(shapes, kinds, strict=False) if kind in DTYPES]
    yield line["name"], tuple(tensors)
    yield line["name"], tuple(each for each in tensors if each[0] or each[1] not in NUMBERS)


def show(row: Row) -> None:
    """The lines of one trace."""
    print(
        f"{row.trace} ({row.device}): {row.work_ms:.3f} ms of work, {row.before_ms:.3f} before the trace, "
        f"{row.no_op_ms:.3f} without a host op; of the other {row.op_ms:.3f} ms {row.bounded_share:.2%} have a bound"
    )
    for name, share in list(row.without.items())[:6]:
        print(f"    {share:7.2%} {name}")
    for fast in row.fast:
        kind = "a cache may have served it" if fast.warm else "FASTER THAN LIGHT"
        print(
            f"    {kind}: {fast.op} {fast.shapes}: {fast.measured_us:.2f} µs, bound {fast.bound_us:.2f} µs, "
            f"{fast.calls} calls"
        )
    if row.beside:
        flops = [each for each in row.beside if not each.equal_flops]
        moved = [each for each in row.beside if not each.equal_bytes]
        kinds = len(row.beside)
        equal = f"FLOPs of {kinds - len(flops)} as TraceLens, bytes of {kinds - len(moved)}"
        print(f"    of {kinds} kinds of calls {equal}")
        for each in flops:
            print(f"      {each.op} {each.shapes}: {each.rooflight_gflops:.6g} GFLOPs, not {each.tracelens_gflops:.6g}")
        for each in moved:
            print(f"      {each.op} {each.shapes}: {each.rooflight_mb:.6g} MB, not {each.tracelens_mb:.6g}")


def bounds_table(rows: list[Row]) -> Iterator[tuple[object, ...]]:
    """Of each trace the whole step, then what was faster than its bound; the verdict is of data in a cache."""
    for row in rows:
        verdict = "FASTER THAN LIGHT" if row.beats_light else "holds"
        step = f"{row.step_ms * 1e3:.2f}", f"{row.program_bound_ms * 1e3:.2f}"
        yield row.trace, row.device, "(step)", "", 1, *step, verdict
        for fast in row.fast:
            verdict = "holds in a cache" if fast.warm else "FASTER THAN LIGHT"
            measured = f"{fast.measured_us:.2f}", f"{fast.bound_us:.2f}"
            yield row.trace, row.device, fast.op, fast.shapes, fast.calls, *measured, verdict


def main() -> int:
    """All traces, or those whose names contain one of the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="parts of the names of the traces to read; all by default")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    folder = Path(os.environ["ROOFLIGHT_DATA"]) / "traces"
    rows = []
    for path in (*sorted(folder.glob("*.json.gz")), *sorted(folder.glob("labelled/*.json.gz"))):
        if options.names and not any(name in path.name for name in options.names):
            continue
        row = row_of(path)
        rows.append(row)
        if not options.json:
            show(row)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    beaten = sum(row.beats_light or any(not fast.warm for fast in row.fast) for row in rows)
    if not options.names:
        header = ("trace", "device", "op", "shapes", "calls", "fastest_us", "bound_us", "verdict")
        write_csv("trace_bounds", header, bounds_table(rows))
    if not options.json:
        print(f"{beaten} of {len(rows)} traces have anything that is faster than its bound with its data in a cache")
    return int(beaten > 0)


if __name__ == "__main__":
    sys.exit(main())
