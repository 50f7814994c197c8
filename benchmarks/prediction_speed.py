"""How fast predictions come: `rooflight predict` from a cold start, many shapes at once, and the bounds of tables.

    ROOFLIGHT_DATA=data python benchmarks/prediction_speed.py

Cold: the least and the median of nine runs of the command, in a process of its own each, by the wall clock. Products:
200,000 distinct ones on a device whose expert was shown such work, by `Predictor.predict_products`, features and
intervals included; least and median of five, by the wall clock, as LightGBM uses every core. Operators: for each one
100,000 shapes, all their directions, by CPU time: the least of three of what costs, bounds and facts take, and of whole
predictions; beside them what 200 of these shapes take one by one. Devices: 2,000 random linear shapes, both directions,
by CPU time: the first of all, others of as many, and the least of three calls again. Tables: CPU seconds to bound and
to lint all rows of estimate-train-time's files, where ROOFLIGHT_DATA has them.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from predictions_in_order import DEVICES
from predictions_in_order import shapes_of as random_shapes

from rooflight.costs.operators import registry
from rooflight.costs.operators.operator import Operator, accepted
from rooflight.devices import get
from rooflight.prediction.lint.findings import lint_table, row_bounds
from rooflight.prediction.predictor import Predictor
from rooflight.prediction.read import find, read_file
from rooflight.prediction.work.facts import facts_of, facts_of_shapes

COMMAND = "predict gemm --m 4096 --n 4096 --k 4096 --dtype fp16 --device A100-SXM4-80GB --json -"
DEVICE = "A100-SXM4-80GB"
COUNT = 200_000
SHAPES = 100_000
ALONE = 200
FEW_SHAPES = 2_000
FEW = {"encoders": 32, "tensors": 64, "parts": 16, "mp": 8, "nodes": 8, "gpus_per_node": 8, "kernel": 7, "stride": 2}
"""The most of a parameter that stays small; others go to 8,192."""
POWERS = ("mp", "h", "kv_heads", "groups", "moe_num_experts", "top_k", "nodes", "gpus_per_node")


def cold() -> list[float]:
    seconds = []
    for _ in range(9):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "rooflight", *COMMAND.split()], check=True, capture_output=True)
        seconds.append(time.perf_counter() - start)
    return seconds


def warm() -> list[float]:
    predictor = Predictor()
    sizes = np.random.default_rng(0).integers(16, 2048, size=(3, COUNT)) * 8.0
    seconds = []
    for _ in range(6):
        start = time.perf_counter()
        batch = predictor.predict_products(*sizes, "fp16", DEVICE)
        seconds.append(time.perf_counter() - start)
        assert (batch.time_s >= np.maximum(batch.low_s, batch.bound_s)).all()
        assert (batch.time_s <= batch.high_s).all()
    return seconds[1:]  # the first builds LightGBM's form of the trees


def shapes_of(operator: Operator) -> dict[str, NDArray[np.int64]]:
    """SHAPES shapes that an operator takes."""
    rng = np.random.default_rng(0)

    def values(name: str) -> NDArray[np.int64]:
        if name in operator.flags:
            return rng.integers(0, 2, 4 * SHAPES)
        if name in POWERS:
            return np.asarray(2 ** rng.integers(0, 4, 4 * SHAPES))
        return rng.integers(1, FEW[name] + 1, 4 * SHAPES) if name in FEW else 64 * rng.integers(1, 128, 4 * SHAPES)

    columns = {name: values(name) for name in operator.parameters}
    if "kv" in columns:
        columns["kv"] = np.where(columns["causal"] == 1, columns["q"], columns["kv"])
    taken = accepted(operator, columns)[:SHAPES]
    return {name: each[taken] for name, each in columns.items()}


def operators() -> None:
    predictor, device = Predictor(), get(DEVICE)
    print(f"\n{'operator':32} {'shapes':>7} {'facts':>7} {'one by one':>11} {'predictions':>12}   seconds for 100,000")
    for name in registry.names():
        operator = registry.find(name)
        columns = shapes_of(operator)
        count = len(next(iter(columns.values())))
        per_100k = 100_000 / count

        def facts(operator: Operator = operator, columns: dict[str, NDArray[np.int64]] = columns) -> None:
            for direction in operator.directions:
                facts_of_shapes(operator, columns, "float16", direction, device)

        def alone(operator: Operator = operator, columns: dict[str, NDArray[np.int64]] = columns) -> None:
            for row in range(ALONE):
                shape = {name: int(values[row]) for name, values in columns.items()}
                for direction in operator.directions:
                    facts_of(operator.ops(shape, "float16", direction), device)

        def predictions(name: str = name, columns: dict[str, NDArray[np.int64]] = columns) -> None:
            predictor.predict_shapes(name, columns, "fp16", DEVICE)

        each = least(facts) * per_100k, least(alone) * 100_000 / ALONE, least(predictions) * per_100k
        print(f"{name:32} {count:7,} {each[0]:7.2f} {each[1]:11.1f} {each[2]:12.2f}", flush=True)


def least(run: Callable[[], None]) -> float:
    """CPU seconds of the fastest of three runs."""
    seconds = []
    for _ in range(3):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return min(seconds)


def devices() -> None:
    predictor, linear = Predictor(), registry.find("linear")
    print(f"\n{'device':16} {'first':>8} {'others':>8} {'again':>8}   shapes a second")
    for device in DEVICES:
        first, others = (random_shapes(linear, FEW_SHAPES, seed) for seed in (1, 0))

        def predictions(shapes: dict[str, NDArray[np.int64]], device: str = device) -> float:
            start = time.process_time()
            predictor.predict_shapes("linear", shapes, "bf16", device)
            return FEW_SHAPES / (time.process_time() - start)

        rates = predictions(first), predictions(others), max(predictions(others) for _ in range(3))
        print(f"{device:16} {rates[0]:8,.0f} {rates[1]:8,.0f} {rates[2]:8,.0f}", flush=True)


def tables(root: Path) -> None:
    read = [table for path in find(root)[0] for table in read_file(path)]
    rows = sum(map(len, read))
    start = time.process_time()
    bounds = [row_bounds(table) for table in read]
    bounded = time.process_time()
    findings = sum(len(lint_table(table, each)) for table, each in zip(read, bounds, strict=True))
    done = time.process_time()
    seconds = f"bounds {bounded - start:.1f} s, rules {done - bounded:.1f} s"
    print(f"\n{rows:,} rows of {len(read)} tables: {seconds}, {findings:,} findings")


def main() -> None:
    seconds = cold()
    print(f"rooflight predict, cold: least {min(seconds):.2f} s, median {statistics.median(seconds):.2f} s")
    rates = [COUNT / each for each in warm()]
    print(f"predict_products, warm: most {max(rates):,.0f} a second, median {statistics.median(rates):,.0f} a second")
    operators()
    devices()
    data = os.environ.get("ROOFLIGHT_DATA")
    if data:
        tables(Path(data) / "estimate-train-time")


if __name__ == "__main__":
    main()
