"""Errors and coverage of the shipped configuration, on rows and devices that its models did not see.

    ROOFLIGHT_DATA=path/to/data python benchmarks/prediction_scores.py SCORES.json [seen] [unseen] [few]
        [--kinds gemm aten::add ...] [--devices GH200-96GB ...] [--seeds 5] [--markdown]

*seen*: 15 % of the rows of each table are held out at random, the expert of the device learns from all its other rows;
mean and spread over the seeds. *unseen*: each device is left out in turn, all its rows of all tables; the others teach
with at most 6,000 rows a kind. *few*: the same with the shipped experts of the others, and 5 or 20 rows a kind of the
device itself (``few_rows.py``). Errors are mean absolute percentages of raw measurements. *holds* is the share of raw
measurements in the 90 % interval, *faster* the share that is faster than the bound.
Rows that rooflight lint flags, and columns that a fit leaves out, are neither learned from nor scored. A run replaces
in SCORES.json what it scores and keeps the rest; ``--markdown`` prints the tables of docs/lab/predictions.md
and writes the files of benchmarks/results that it links.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import few_rows
import numpy as np
from csv_results import write_csv
from numpy.typing import NDArray
from shipped_rows import NEUSIGHT, VIDUR, Rows, pool, root_of_data, rows_of, tables

from rooflight.devices import get
from rooflight.prediction.fit.experts import LEAST_ROWS, join, teach, with_reached
from rooflight.prediction.fit.rows import Shown
from rooflight.prediction.model.model import Expert, Model

HELD_OUT = 0.15
MOST_ROWS = 6000
UNSEEN_KINDS = {
    "BMM": (NEUSIGHT, ("batched_mm",)),
    "FC": (NEUSIGHT, ("linear",)),
    "elementwise": (NEUSIGHT, ("add", "mul", "div", "pow", "relu", "tanh", "gelu_rows")),
    "softmax": (NEUSIGHT, ("softmax_rows",)),
    "LN": (NEUSIGHT, ("layernorm_rows",)),
    "linear": (VIDUR, ("linear",)),
    "add": (VIDUR, ("add",)),
    "gelu": (VIDUR, ("gelu_rows",)),
    "RMS norm": (VIDUR, ("rmsnorm",)),
    "embedding": (VIDUR, ("embedding_rows",)),
}
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Figures = dict[str, float]


def missed(model: Model, rows: Rows, which: Mask) -> tuple[Floats, Floats, Floats]:
    """Of some rows, each as measured: how far off the prediction is, whether the interval holds, whether it is faster
    than the bound.
    """
    answer = model.answer(rows.facts[which], get(rows.device))
    true = rows.slowdown[which]
    holds = (answer.low <= true) & (true <= answer.high)
    return np.abs(np.expm1(np.maximum(0.0, answer.slowdown) - true)), holds.astype(float), (true < 0).astype(float)


def figures(parts: list[tuple[Floats, Floats, Floats]]) -> Figures:
    error, holds, faster = (100 * np.concatenate(each) for each in zip(*parts, strict=True))
    return {"error": float(error.mean()), "holds": float(holds.mean()), "faster": float(faster.mean())}


def scored_seen(rows: Rows, seed: int) -> dict[str, Figures]:
    """By table, of one seed."""
    test = np.random.default_rng(seed).random(len(rows.slowdown)) < HELD_OUT
    if (~test).sum() < LEAST_ROWS:
        return {}
    shown = rows.shown(~test)
    model = join([teach(shown, trees_only=True)], [shown])
    found = {}
    for name in sorted(set(zip(rows.studies, rows.operators, rows.directions, strict=True))):
        study, operator, direction = name
        which = test & (rows.studies == study) & (rows.operators == operator) & (rows.directions == direction)
        if which.any():
            found["/".join((*name, rows.device))] = figures([missed(model, rows, which)]) | {"rows": int(which.sum())}
    return found


def seen(data: dict[tuple[str, str], Rows], seeds: int) -> dict[str, Figures]:
    """By table: means over the seeds, and the spread of the error."""
    jobs = [
        (rows, seed) for rows in sorted(data.values(), key=lambda each: -len(each.slowdown)) for seed in range(seeds)
    ]
    by_table: dict[str, list[Figures]] = defaultdict(list)
    with pool() as workers:
        for found in workers.map(scored_seen, *zip(*jobs, strict=True)):
            for name, each in found.items():
                by_table[name].append(each)
    return {
        name: {key: float(np.mean([each[key] for each in runs])) for key in runs[0]}
        | {
            "least": min(each["error"] for each in runs),
            "most": max(each["error"] for each in runs),
            "seeds": len(runs),
        }
        for name, runs in by_table.items()
    }


def unseen(data: dict[tuple[str, str], Rows]) -> dict[str, dict[str, Figures]]:
    """By kind and device left out."""
    shown = [rows.shown(np.ones(len(rows.slowdown), dtype=bool), MOST_ROWS) for rows in data.values()]
    enough = [each for each in shown if len(each.slowdown) >= LEAST_ROWS]
    with pool() as workers:
        taught = list(zip(workers.map(partial(teach, trees_only=True), enough), enough, strict=True))
    taught = with_reached(taught)
    parts: dict[str, dict[str, list[tuple[Floats, Floats, Floats]]]] = defaultdict(lambda: defaultdict(list))
    for key in sorted({each.key for each in enough}):
        experts = [pair for pair in taught if pair[1].key == key]
        for (_, device), rows in data.items():
            others = [pair for pair in experts if pair[1].device.name != device]
            if rows.key != key or not others:
                continue
            wanted = list(asked_unseen(rows))
            if wanted:
                model = without(others)
                for kind, which in wanted:
                    parts[kind][device].append(missed(model, rows, which))
    return {kind: {device: figures(each) for device, each in found.items()} for kind, found in parts.items()}


def without(others: list[tuple[Expert, Shown]]) -> Model:
    return join([expert for expert, _ in others], [shown for _, shown in others])


def asked_unseen(rows: Rows) -> Iterator[tuple[str, Mask]]:
    """Kinds that rows are scored as, and which: of NeuSight's those of its test sweep, of Vidur's all."""
    for kind, (study, operators) in UNSEEN_KINDS.items():
        which = (rows.studies == study) & np.isin(rows.operators, operators)
        if study == NEUSIGHT:
            which &= np.char.endswith(rows.folders, "test")
        if which.any():
            yield kind, which


def markdown(scores: dict[str, dict[str, dict[str, Figures]]]) -> Iterator[str]:
    table = scores.get("unseen", {})
    kinds = [kind for kind in UNSEEN_KINDS if kind in table]
    if kinds:
        write_csv("prediction_unseen", PLACED, placed(table, "error", "holds"))
        yield "| | " + " | ".join(kinds) + " |\n|---|" + "---:|" * len(kinds)
        means = [np.mean([each["error"] for each in table[kind].values()]) for kind in kinds]
        yield "| **mean over devices** | " + " | ".join(f"**{mean:.1f} %**" for mean in means) + " |"
    if scores.get("few"):
        write_csv("prediction_few", PLACED, placed(scores["few"], "smart 20 error", "smart 20 holds"))
        yield ""
        yield from few_rows.markdown(scores["few"], list(UNSEEN_KINDS))
    if scores.get("seen"):
        header = (
            "table",
            "rows held out",
            "error %",
            "least of the seeds",
            "most of the seeds",
            "90 % interval holds %",
        )
        rows = (
            (
                name.replace("/", " "),
                f"{each['rows']:.0f}",
                *(f"{each[key]:.2f}" for key in ("error", "least", "most")),
                f"{each['holds']:.0f}",
                f"{each['faster']:.1f}",
            )
            for name, each in sorted(scores["seen"].items())
        )
        write_csv("prediction_seen", (*header, "faster than the bound %"), rows)


PLACED = ("kind", "left out", "error %", "90 % interval holds %")


def placed(table: Mapping[str, Mapping[str, Mapping[str, float]]], error: str, holds: str) -> Iterator[tuple[str, ...]]:
    for kind in (kind for kind in UNSEEN_KINDS if kind in table):
        for device, each in sorted(table[kind].items()):
            yield kind, device, f"{each[error]:.1f}", f"{each[holds]:.0f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scores", type=Path)
    parser.add_argument("parts", nargs="*", default=[], help="seen, unseen, few")
    parser.add_argument("--kinds", nargs="*", default=[])
    parser.add_argument("--devices", nargs="*", default=[], help="of those seen, or few, only")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--markdown", action="store_true")
    given = parser.parse_args()
    scores = json.loads(given.scores.read_text()) if given.scores.exists() else {}
    start = time.perf_counter()
    if parts := given.parts or ([] if given.markdown else ["seen", "unseen"]):
        data = rows_of(tables(root_of_data()), given.kinds)
        print(
            f"{sum(len(rows.slowdown) for rows in data.values())} rows, {time.perf_counter() - start:.0f} s",
            file=sys.stderr,
        )
        for part in parts:
            some = {place: rows for place, rows in data.items() if not given.devices or place[1] in given.devices}
            found: Mapping[str, Mapping[str, Any]]
            if part == "few":
                found = few_rows.few(data, lambda rows: list(asked_unseen(rows)), given.devices)
            else:
                found = seen(some, given.seeds) if part == "seen" else unseen(data)
            for name, each in found.items():
                kept = scores.setdefault(part, {})
                kept[name] = dict(each) if part == "seen" else {**kept.get(name, {}), **each}
        given.scores.write_text(json.dumps(scores, indent=1, sort_keys=True) + "\n")
        print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr)
    print("\n".join(markdown(scores)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
