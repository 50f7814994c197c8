"""Tables of benchmarks as files: benchmarks/results/NAME.csv."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

FOLDER = Path(__file__).parent / "results"


def write_csv(name: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table; its page links it and says what it shows."""
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / f"{name}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
