"""How wrong predictions are on rows held out, and how often their 90 % intervals hold.

    ROOFLIGHT_DATA=path/to/data python benchmarks/prediction_splits.py [splits] [network] [neusight] [vidur]

*splits*, of estimate-train-time's tables: *random*, 15 % of the rows of the operators named; *largest*, the largest
fifth of them by bound, while nothing of that kind of work that is as large is shown. *network*: the same of
collectives (largest by bytes sent), those that the shipped models learn from; and how much slower Perlmutter's
all-gathers are than its all-reduces that send as much. *neusight* and *vidur*: a GPU left out of training altogether;
on NeuSight's test rows of it (training: train and test rows of the others) and on all Vidur rows of it. At most 6,000
rows a kind of work and GPU are shown where a GPU is left out. Rows that rooflight lint flags are neither learned from
nor scored. Mean absolute percentage errors.
"""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rooflight.devices import get
from rooflight.prediction.facts import FACTS, WorkKind
from rooflight.prediction.fitting import unflagged
from rooflight.prediction.lint import lint_table
from rooflight.prediction.model import Expert, Model
from rooflight.prediction.reading import find, read_file
from rooflight.prediction.row_bounds import row_bounds
from rooflight.prediction.teaching import Shown, join, teach

SENT = FACTS[WorkKind.NETWORK].index("sent")
A100, GH200 = "A100-SXM4-80GB", "GH200-96GB"
LINEAR = ("linear1", "linear3", "linear4")
CASES = (
    # operators, direction (None: both), split, device, estimate-train-time's error, bar
    (LINEAR, None, "random", A100, "6.1", 2.0),
    (LINEAR, None, "random", GH200, "5.4", 1.2),
    (LINEAR, None, "largest", A100, "46.6", 5.0),
    (LINEAR, None, "largest", GH200, "48.3", 1.5),
    (("flash_atten",), "fwd", "random", A100, "12.3", 5.0),
    (("flash_atten",), "fwd", "random", GH200, "6.7", 0.9),
    (("softmax",), None, "random", A100, "9.4", 4.0),
    (("layernorm",), None, "random", A100, "-", 4.0),
)
NEUSIGHT_KINDS = {
    "BMM": ("batched_mm",),
    "FC": ("linear",),
    "elementwise": ("add", "mul", "div", "pow", "relu", "tanh", "gelu_rows"),
    "softmax": ("softmax_rows",),
    "LN": ("layernorm_rows",),
}
MOST_ROWS = 6000


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Work of one kind on one device, with the operator, the direction and the folder that each row came from."""

    key: str
    device: str
    facts: NDArray[np.float64]
    slowdown: NDArray[np.float64]
    operators: NDArray[np.str_]
    directions: NDArray[np.str_]
    folders: NDArray[np.str_]

    def shown(self, which: NDArray[np.bool_], most: int | None = None) -> Shown:
        places = np.flatnonzero(which)
        if most is not None and len(places) > most:
            places = np.random.default_rng(0).permutation(places)[:most]
        return Shown(key=self.key, device=get(self.device), facts=self.facts[places], slowdown=self.slowdown[places])


def rows_of(folders: list[Path]) -> dict[tuple[str, str], Rows]:
    """All rows that lint does not flag, by kind of work and device."""
    paths = [path for folder in folders for path in find(folder)[0]]
    found: dict[tuple[str, str], list[tuple[tuple[float, ...], float, str, str, str]]] = defaultdict(list)
    with pool() as workers:
        for part in workers.map(rows_in, paths):
            for key, device, *row in part:
                found[key, device].append(tuple(row))
    arrays = {}
    for (key, device), rows in found.items():
        facts, slowdown, operators, directions, folders_of = zip(*rows, strict=True)
        arrays[key, device] = Rows(
            key=key, device=device, facts=np.array(facts), slowdown=np.array(slowdown),
            operators=np.array(operators), directions=np.array(directions), folders=np.array(folders_of),
        )  # fmt: skip
    return arrays


def rows_in(path: Path) -> list[tuple[str, str, tuple[float, ...], float, str, str, str]]:
    found = []
    for table in read_file(path):
        bounds = row_bounds(table)
        flagged = {finding.place for finding in lint_table(table, bounds)}
        for facts, seconds, directions in unflagged(table, flagged, bounds):
            slowdown = np.maximum(0.0, np.log(seconds / facts.values[:, 0])).tolist()
            for values, off, number in zip(facts.values.tolist(), slowdown, directions.tolist(), strict=True):
                row = tuple(values), off, table.operator, table.directions[number], path.parent.name
                found.append((facts.key, table.device.name, *row))
    return found


def score(model: Model, rows: Rows, which: NDArray[np.bool_]) -> tuple[list[float], list[bool]]:
    answer = model.answer(rows.facts[which], get(rows.device))
    true = rows.slowdown[which]
    errors = np.abs(np.expm1(answer.slowdown - true))
    return errors.tolist(), ((answer.low <= true) & (true <= answer.high)).tolist()


def splits(root: Path) -> None:
    data = rows_of(
        [root / "estimate-train-time" / "regressors" / place / "operator" for place in ("Perlmutter", "Vista")]
    )
    print(f"\n{'operators':26} {'device':16} {'split':8} {'rows':>5} {'error':>7} {'bar':>6} {'e-t-t':>6}  90 % holds")
    for operators, direction, split, device, theirs, bar in CASES:
        errors: list[float] = []
        holds: list[bool] = []
        for (_, name), rows in data.items():
            mine = np.isin(rows.operators, operators) & (rows.directions == (direction or rows.directions))
            if name == device and mine.any():
                missed, held = held_out(rows, mine, split)
                errors += missed
                holds += held
        print(
            f"{' '.join(operators):26} {device:16} {split:8} {len(errors):5} {100 * np.mean(errors):6.2f}% {bar:5.1f}% "
            f"{theirs:>5}%  {100 * np.mean(holds):.0f} %",
            flush=True,
        )


def held_out(rows: Rows, mine: NDArray[np.bool_], split: str, size: int = 0) -> tuple[list[float], list[bool]]:
    """What is missed of some of ``mine``, when the other rows are shown. ``size``: the place of the fact that tells
    which are largest.
    """
    if split == "random":
        test = mine & (np.random.default_rng(0).random(len(mine)) < 0.15)
        train = ~test
    else:
        limit = np.quantile(rows.facts[mine, size], 0.8)
        test, train = mine & (rows.facts[:, size] > limit), rows.facts[:, size] <= limit
    shown = rows.shown(train)
    return score(join([teach(shown)], [shown]), rows, test)


def network(root: Path) -> None:
    data = rows_of(
        [
            *sorted((root / "estimate-train-time" / "regressors" / "Vista" / "nccl").glob("*_allreduce_*")),
            *sorted((root / "estimate-train-time" / "regressors" / "Vista" / "nccl").glob("*_p2p_*")),
            *(root / "vidur" / "network" / node for node in ("a100_dgx", "h100_dgx", "a40_pairwise_nvlink")),
            *(root / "vidur" / "network" / f"{gpu}_pairwise_nvlink" / "all_reduce.csv" for gpu in ("a100", "h100")),
        ]
    )
    print(f"\n{'collective':12} {'device':16} {'split':8} {'rows':>5} {'error':>7}  90 % holds")
    for key, device in sorted(data):
        rows = data[key, device]
        for split in ("random", "largest"):
            errors, holds = held_out(rows, np.ones(len(rows.slowdown), dtype=bool), split, size=SENT)
            print(
                f"{key:12} {device:16} {split:8} {len(errors):5} {100 * np.mean(errors):6.2f}%  "
                f"{100 * np.mean(holds):.0f} %",
                flush=True,
            )

    nccl = root / "estimate-train-time" / "regressors" / "Perlmutter" / "nccl"
    gathers, reduces = (
        rows_of(sorted(nccl.glob(f"*_{name}_large_*")))[key, A100]
        for name, key in (("allgather", "all-gather"), ("allreduce", "all-reduce"))
    )
    for ranks, nodes in np.unique(gathers.facts[:, -2:], axis=0):
        here = [by_sent(rows)[(rows.facts[:, -2:] == (ranks, nodes)).all(axis=1)] for rows in (gathers, reduces)]
        ratios = [np.exp(np.quantile(here[0], at) - np.quantile(here[1], at)) for at in (0.1, 0.5)]
        print(
            f"Perlmutter, {ranks:.0f} ranks on {nodes:.0f} nodes: all-gather / all-reduce {ratios[1]:.2f}, "
            f"of their fast ends {ratios[0]:.2f}"
        )


def by_sent(rows: Rows) -> NDArray[np.float64]:
    """log(seconds / byte sent)."""
    return np.asarray(rows.slowdown + np.log(rows.facts[:, 0] / rows.facts[:, SENT]))


def experts_of(data: dict[tuple[str, str], Rows]) -> Iterator[tuple[str, list[tuple[Expert, Shown, Rows]]]]:
    """By kind of work, what each device teaches."""
    shown = {place: rows.shown(np.ones(len(rows.slowdown), dtype=bool), MOST_ROWS) for place, rows in data.items()}
    enough = {place: each for place, each in shown.items() if len(each.slowdown) >= 100}
    with pool() as workers:
        taught = dict(zip(enough, workers.map(teach, enough.values()), strict=True))
    for key in sorted({key for key, _ in enough}):
        yield key, [(taught[place], enough[place], data[place]) for place in enough if place[0] == key]


def left_out(data: dict[tuple[str, str], Rows], kinds: dict[str, tuple[str, ...]], folder: str | None) -> None:
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    holds: dict[str, list[bool]] = defaultdict(list)
    for _, experts in experts_of(data):
        for expert, _, rows in experts:
            others = [each for each in experts if each[0].device != expert.device]
            if not others:
                continue
            model = join([each[0] for each in others], [each[1] for each in others])
            for kind, operators in kinds.items():
                which = np.isin(rows.operators, operators) & ((rows.folders == folder) if folder else True)
                if which.any():
                    missed, held = score(model, rows, which)
                    errors[kind, expert.device] += missed
                    holds[kind] += held
    devices = sorted({device for _, device in errors})
    print(f"\n{'left out':18}" + "".join(f"{kind:>18}" for kind in kinds))
    for device in devices:
        cells = [errors.get((kind, device)) for kind in kinds]
        print(f"{device:18}" + "".join(f"{100 * np.mean(cell):17.1f}%" if cell else f"{'-':>18}" for cell in cells))
    print(f"{'90 % holds':18}" + "".join(f"{100 * np.mean(holds[kind]):16.0f} %" for kind in kinds), flush=True)


def pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=get_context("spawn"))


def main() -> int:
    place = os.environ.get("ROOFLIGHT_DATA")
    if not place:
        print("set ROOFLIGHT_DATA to the folder that holds estimate-train-time", file=sys.stderr)
        return 2
    root, start = Path(place), time.perf_counter()
    wanted = sys.argv[1:] or ["splits", "network", "neusight", "vidur"]
    if "splits" in wanted:
        splits(root)
    if "network" in wanted:
        network(root)
    if "neusight" in wanted:
        data = rows_of([root / "neusight" / "train", root / "neusight" / "test"])
        left_out({place: rows for place, rows in data.items() if "conv" not in place[0]}, NEUSIGHT_KINDS, "test")
    if "vidur" in wanted:
        data = rows_of([root / "vidur" / "compute"])
        kinds = {name: (name,) for name in sorted({each for rows in data.values() for each in set(rows.operators)})}
        left_out(data, kinds, None)
    print(f"\n{time.perf_counter() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
