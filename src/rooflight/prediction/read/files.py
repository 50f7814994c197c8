"""Which files hold tables, and what reads them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rooflight.prediction.read import published, samples
from rooflight.prediction.read.measured import SUFFIXES, MeasuredTable, columns_of
from rooflight.prediction.read.samples import bare_name
from rooflight.records.samples import SUFFIX


class _Format(NamedTuple):
    recognised: Callable[[Path, Sequence[str]], bool]
    read: Callable[[Path], tuple[MeasuredTable, ...]]


_FORMATS: Final = (
    _Format(samples.is_samples, samples.read_samples),
    _Format(published.is_neusight, published.read_neusight),
    _Format(published.is_layers, published.read_layers),
    _Format(published.is_collectives, published.read_collectives),
    # the last: it is recognised by its name, whatever the columns
    _Format(samples.is_named_table, samples.read_named_table),
)

_PART: Final = re.compile(r"_[0-9]+_[0-9]+$")
"""What the name of a part of a sweep has and the name of the merged sweep has not: ``_{parts}_{part}``."""
_FORMS: Final = "files are named GPU_operator_precision.csv, or have the columns of NeuSight's or Vidur's tables"


def read(path: Path | str) -> tuple[MeasuredTable, ...]:
    """The tables of a file, or of a folder and those inside it, in alphabetical order.

    Raises ValueError, one line with file and line, for what cannot be read, for unknown devices, for missing columns,
    ragged rows, shapes that are no integers and times that are not positive numbers; and for a folder without tables.
    """
    found, _ = find(path)
    return tuple(table for each in found for table in read_file(each))


def find(path: Path | str) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """The files under ``path`` that hold tables, and the CSV and JSON-lines files that do not: those of no format, and
    in a folder those of sweeps in which no shape could be measured.

    The CSV that the sampler writes beside its own file, and that which ``rooflight merge`` writes beside the parts of a
    sweep, are not counted, as they hold the same rows. Raises ValueError where there is no table.
    """
    root = Path(path)
    if root.is_file():
        return (root,), ()
    if not root.is_dir():
        raise ValueError(f"there is no {root}: name a CSV file of samples, a {SUFFIX} file, or a folder of them")
    files = sorted(each for each in root.rglob("*") if each.name.endswith((*SUFFIXES, SUFFIX)) and each.is_file())
    stores = {each.with_suffix("") for each in files if each.suffix == SUFFIX}
    again = stores | {each.with_name(_PART.sub("", each.name)) for each in stores}
    files = [each for each in files if each.suffix == SUFFIX or each.with_name(bare_name(each)) not in again]
    known = [each for each in files if _format(each)]
    if not known:
        raise ValueError(f"{root} holds no samples: {_FORMS}")
    tables = [each for each in known if each.suffix != SUFFIX or not samples.nothing_measured(each)]
    if not tables:
        raise ValueError(f"{root}: no row of any sweep was measured; the reasons are in the rows")
    return tuple(tables), tuple(each for each in files if each not in tables)


def find_all(paths: Iterable[Path]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """What ``find`` finds under several paths, each file once however it is named."""
    found: dict[Path, Path] = {}
    skipped: dict[Path, Path] = {}
    for path in paths:
        for files, once in zip(find(path), (found, skipped), strict=True):
            for each in files:
                once.setdefault(each.resolve(), each)
    return tuple(found.values()), tuple(skipped.values())


def read_file(path: Path) -> tuple[MeasuredTable, ...]:
    """The tables of one file. Raises ValueError as ``read`` does."""
    known = _format(path)
    if known is None:
        raise ValueError(f"{path.name} has an unknown format: {_FORMS}")
    return known.read(path)


def _format(path: Path) -> _Format | None:
    columns = () if path.suffix == SUFFIX else columns_of(path)
    return next((each for each in _FORMATS if each.recognised(path, columns)), None)
