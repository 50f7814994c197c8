"""The tables that the shipped models learn from, and their rows with what each came from.

    ROOFLIGHT_DATA=path/to/data python benchmarks/shipped_rows.py

prints the paths, for ``fit_shipped.sh``; with ``traces``, those of the traces that have times of ops.

Left out are Perlmutter's collectives, which ran over sockets between nodes and over single links within, Vista's
all-gathers, most of which lint flags, Vidur's sends between pairs: two kinds of node have one and the same file; and
steps of an optimizer that is no operator, of which only its four columns are known.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooflight.devices import get
from rooflight.prediction.fit.rows import Shown, unflagged
from rooflight.prediction.lint.findings import left_out, lint_table, row_bounds
from rooflight.prediction.read import find, read_file

ETT, NEUSIGHT, VIDUR, AICONFIGURATOR = "estimate-train-time", "neusight", "vidur", "aiconfigurator"


def tables(root: Path) -> list[Path]:
    """Files and folders of the shipped models' tables."""
    regressors, network = root / ETT / "regressors", root / VIDUR / "network"
    return [
        *(each for each in sorted(regressors.glob("*/operator/*.csv")) if "80GB_optimizer" not in each.name),
        *(root / NEUSIGHT / part for part in ("train", "test", "amd_train", "amd_test")),
        root / VIDUR / "compute",
        *sorted((regressors / "Vista" / "nccl").glob("*allreduce*.csv")),
        *sorted((regressors / "Vista" / "nccl").glob("*p2p*.csv")),
        *(network / node for node in ("a100_dgx", "h100_dgx", "a40_pairwise_nvlink")),
        *(network / f"{gpu}_pairwise_nvlink" / "all_reduce.csv" for gpu in ("a100", "h100")),
    ]


def traces(root: Path) -> list[Path]:
    """Traces of devices that are in the catalog, with times of ops and their shapes."""
    left_out = ("a100_alexnet", "a100_triton", "mi210", "v100", "mi300x_sglang_qwen3-8b_decode_capture")
    return [path for path in sorted((root / "traces").glob("*.json.gz")) if not path.name.startswith(left_out)]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Work of one kind on one device: facts [rows, facts], log(seconds / bound) as measured [rows], and the study, its
    folder, the operator and the direction of each row.
    """

    key: str
    device: str
    facts: NDArray[np.float64]
    slowdown: NDArray[np.float64]
    studies: NDArray[np.str_]
    folders: NDArray[np.str_]
    operators: NDArray[np.str_]
    directions: NDArray[np.str_]

    def shown(self, which: NDArray[np.bool_], most: int | None = None) -> Shown:
        """Some of the rows, at most ``most``, as models learn from them."""
        places = np.flatnonzero(which)
        if most is not None and len(places) > most:
            places = np.random.default_rng(0).permutation(places)[:most]
        return Shown(key=self.key, device=get(self.device), facts=self.facts[places], slowdown=self.slowdown[places])


def rows_of(paths: Iterable[Path], kinds: Iterable[str] = ()) -> dict[tuple[str, str], Rows]:
    """All rows that lint does not flag, by kind of work and device; of some kinds of work only where any are named."""
    files = [path for each in paths for path in find(each)[0]]
    parts: dict[tuple[str, str], list[tuple[NDArray[Any], ...]]] = defaultdict(list)
    wanted = frozenset(kinds)
    with pool() as workers:
        for found in workers.map(_rows_in, files):
            for key, device, *columns in found:
                if not wanted or key in wanted:
                    parts[key, device].append(tuple(columns))
    names = ("facts", "slowdown", "studies", "folders", "operators", "directions")
    return {
        (key, device): Rows(
            key=key,
            device=device,
            **{name: np.concatenate(arrays) for name, arrays in zip(names, zip(*found, strict=True), strict=True)},
        )
        for (key, device), found in parts.items()
    }


def _rows_in(
    path: Path,
) -> list[tuple[str, str, NDArray[np.float64], NDArray[np.float64], *tuple[NDArray[np.str_], ...]]]:
    found = []
    study = next((name for name in (ETT, NEUSIGHT, VIDUR) if name in path.parts), AICONFIGURATOR)
    for table in read_file(path):
        bounds = row_bounds(table)
        flagged = left_out(lint_table(table, bounds))
        for facts, seconds, directions in unflagged(table, flagged, bounds):
            labels = (study, path.parent.name, table.operator)
            found.append((
                facts.key,
                table.device.name,
                facts.values,
                np.log(seconds / facts.values[:, 0]),
                *(np.full(len(seconds), label) for label in labels),
                np.array(table.directions)[directions],
            ))  # fmt: skip
    return found


def pool() -> ProcessPoolExecutor:
    """As many processes as there are cores."""
    return ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=get_context("spawn"))


def root_of_data() -> Path:
    """The folder that ROOFLIGHT_DATA names. Exits where it is not set."""
    place = os.environ.get("ROOFLIGHT_DATA")
    if not place:
        sys.exit("set ROOFLIGHT_DATA to the folder that holds estimate-train-time, neusight and vidur")
    return Path(place)


if __name__ == "__main__":
    print("\n".join(map(str, (traces if sys.argv[1:] == ["traces"] else tables)(root_of_data()))))
