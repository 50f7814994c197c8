"""How wrong predictions are on rows held out of estimate-train-time's tables.

    ROOFLIGHT_DATA=path/to/data python benchmarks/prediction_splits.py

*random*: 15 % of the rows of the operators named, all directions together. *largest*: those of the largest fifth by
bound. The model sees every other row of the same kind of work, of both devices; never a row held out. Rows that
rooflight lint flags are neither learned from nor scored, and counted. Mean absolute percentage error.
"""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rooflight.prediction.features import features_of
from rooflight.prediction.lint import lint_table
from rooflight.prediction.model import _fit
from rooflight.prediction.tables import read
from rooflight.sampling import registry

CASES = (
    # operators, direction (None: both), split, estimate-train-time's error, bar; by device
    (("linear1", "linear3", "linear4"), None, "random", {"A100-SXM4-80GB": (6.1, 2.0), "GH200-96GB": (5.4, 1.2)}),
    (("linear1", "linear3", "linear4"), None, "largest", {"A100-SXM4-80GB": (46.6, 5.0), "GH200-96GB": (48.3, 1.5)}),
    (("flash_atten",), "fwd", "random", {"A100-SXM4-80GB": (12.3, 5.0), "GH200-96GB": (6.7, 0.9)}),
    (("softmax",), None, "random", {"A100-SXM4-80GB": (9.4, 4.0)}),
    (("layernorm",), None, "random", {"A100-SXM4-80GB": (float("nan"), 4.0)}),
)


@dataclass(frozen=True)
class Row:
    device: str
    operator: str
    direction: str
    key: str
    values: tuple[float, ...]
    bound_s: float
    seconds: float


def rows_of(root: Path) -> tuple[list[Row], int]:
    found: list[Row] = []
    flagged = 0
    for folder in ("Perlmutter", "Vista"):
        for table in read(root / "estimate-train-time" / "regressors" / folder / "operator"):
            if not table.known:
                continue
            operator = registry.find(table.operator)
            bad = {(finding.line, finding.direction) for finding in lint_table(table) if finding.line}
            for number in range(len(table)):
                shape = table.shape(number)
                if operator.refusal(shape) is not None:
                    continue
                work = operator.work(shape, table.dtype)
                for direction, half, seconds in zip(
                    table.directions, (work.forward, work.backward), table.seconds[number].tolist(), strict=False
                ):
                    if (int(table.lines[number]), direction) in bad:
                        flagged += 1
                        continue
                    features = features_of(half, table.device) if half else None
                    if features is not None:
                        found.append(
                            Row(table.device.name, table.operator, direction, features.key, features.values,
                                features.bound_s, seconds)
                        )  # fmt: skip
    return found, flagged


def main() -> int:
    root = os.environ.get("ROOFLIGHT_DATA")
    if not root:
        print("set ROOFLIGHT_DATA to the folder that holds estimate-train-time", file=sys.stderr)
        return 2
    start = time.perf_counter()
    rows, flagged = rows_of(Path(root))
    print(f"{len(rows)} times in {time.perf_counter() - start:.0f} s, {flagged} flagged and left out")
    by_key: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_key[row.key].append(row)
    arrays = {
        key: (
            np.array([row.values for row in group]),
            np.array([max(0.0, np.log(row.seconds / row.bound_s)) for row in group]),
        )
        for key, group in by_key.items()
    }
    print(
        f"{'operators':28} {'device':16} {'split':8} {'rows':>5} {'error':>7} {'bar':>6} {'e-t-t':>6}  interval holds"
    )
    for operators, direction, split, devices in CASES:
        for device, (theirs, bar) in devices.items():
            errors: list[float] = []
            inside: list[bool] = []
            for key, group in by_key.items():
                mine = np.array(
                    [
                        row.device == device and row.operator in operators and direction in (None, row.direction)
                        for row in group
                    ]
                )
                if not mine.any():
                    continue
                values, slowdown = arrays[key]
                if split == "random":
                    test = mine & (np.random.default_rng(0).random(len(group)) < 0.15)
                else:
                    test = mine & (values[:, 0] > np.quantile(values[mine, 0], 0.8))
                predicted = np.maximum(0.0, _fit(values[~test], slowdown[~test]).predict(values[test]))
                # the interval, from a second part held out of what is learned from
                calibrating = ~test & mine & (np.random.default_rng(1).random(len(group)) < 0.2)
                rest = _fit(values[~test & ~calibrating], slowdown[~test & ~calibrating])
                missed = slowdown[calibrating] - np.maximum(0.0, rest.predict(values[calibrating]))
                low, high = np.quantile(missed, (0.05, 0.95))
                off = slowdown[test] - predicted
                errors += np.abs(np.expm1(-off)).tolist()
                inside += ((off >= low) & (off <= high)).tolist()
            print(
                f"{' '.join(operators):28} {device:16} {split:8} {len(errors):5} {100 * np.mean(errors):6.2f}% "
                f"{bar:5.1f}% {theirs:5.1f}%  {100 * np.mean(inside):.0f}%",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
