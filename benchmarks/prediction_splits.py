"""How wrong predictions are on rows held out in the ways that other projects and this one's goals name.

    ROOFLIGHT_DATA=path/to/data python benchmarks/prediction_splits.py [splits] [network] [FOLDER]

*splits*, of estimate-train-time's tables alone: *random*, 15 % of the rows of the operators named; *largest*, the
largest fifth of them by bound, while nothing of that kind of work that is as large is shown. *network*: the same of
collectives (largest by bytes sent), those that the shipped models learn from; and how much slower Perlmutter's
all-gathers are than its all-reduces that send as much. *FOLDER*: the same of the tables that ``nccl_tables.py`` wrote
there. Rows that rooflight lint flags are neither learned from nor scored. Mean absolute percentage errors of raw
measurements. ``prediction_scores.py`` has the errors of the shipped configuration.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from shipped_rows import Rows, root_of_data, rows_of

from rooflight.devices import get
from rooflight.prediction.fit.experts import join, teach
from rooflight.prediction.model.model import Model
from rooflight.prediction.work.facts import FACTS, WorkKind

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


def score(model: Model, rows: Rows, which: NDArray[np.bool_]) -> tuple[list[float], list[bool]]:
    answer = model.answer(rows.facts[which], get(rows.device))
    true = rows.slowdown[which]
    errors = np.abs(np.expm1(np.maximum(0.0, answer.slowdown) - true))
    return errors.tolist(), ((np.maximum(0.0, answer.low) <= true) & (true <= answer.high)).tolist()


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


def collectives(paths: Iterable[Path]) -> None:
    data = rows_of(paths)
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


def network(root: Path) -> None:
    collectives(
        [
            *sorted((root / "estimate-train-time" / "regressors" / "Vista" / "nccl").glob("*_allreduce_*")),
            *sorted((root / "estimate-train-time" / "regressors" / "Vista" / "nccl").glob("*_p2p_*")),
            *(root / "vidur" / "network" / node for node in ("a100_dgx", "h100_dgx", "a40_pairwise_nvlink")),
            *(root / "vidur" / "network" / f"{gpu}_pairwise_nvlink" / "all_reduce.csv" for gpu in ("a100", "h100")),
        ]
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


def main() -> int:
    root, start = root_of_data(), time.perf_counter()
    wanted = sys.argv[1:] or ["splits", "network"]
    if "splits" in wanted:
        splits(root)
    if "network" in wanted:
        network(root)
    if folders := [Path(word) for word in wanted if Path(word).is_dir()]:
        collectives(folders)
    print(f"\n{time.perf_counter() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
