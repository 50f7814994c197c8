"""Sheet: the needed columns of a CSV, as text and as checked numbers. Plain files and gzipped ones."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from operator import itemgetter
from pathlib import Path
from typing import Final, TextIO

import numpy as np

from rooflight.prediction.read.measured import Floats, Integers, Mask
from rooflight.records.quantity import count_of

SUFFIXES: Final = (".csv", ".csv.gz")
_MOST_PACKED: Final = 200  # times its size that a file may unpack to: measured tables do to 5 to 25 times
_ALWAYS_ALLOWED_BYTES: Final = 1 << 28  # whatever the size of the file
_LARGEST: Final = 2.0**53  # beyond it a float no longer distinguishes integers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sheet:
    """``cells`` by column, one per row; ``lines`` [rows] are their lines in the file, the header's being 1."""

    path: Path
    cells: Mapping[str, tuple[str, ...]]
    lines: Integers

    def numbers(self, column: str) -> Floats:
        """A column of numbers. Raises ValueError for a cell that is none."""
        try:
            return np.array(list(map(float, self.cells[column])), dtype=np.float64)
        except ValueError:
            pass
        for line, value in zip(self.lines, self.cells[column], strict=True):
            try:
                float(value)
            except ValueError:
                raise ValueError(f'{self.path}, line {line}: {column} is "{value[:40]}", which is no number') from None
        raise AssertionError

    def sizes(self, column: str) -> Integers:
        """A column of sizes. Raises ValueError for what is no whole number from 0."""
        return sizes(self.path, self.lines, column, self.numbers(column))

    def seconds(self, column: str, unit_s: float) -> Floats:
        """A column of times. Raises ValueError for what is no positive number."""
        return times(self.path, self.lines, column, self.numbers(column)) * unit_s


def columns_of(path: Path) -> tuple[str, ...]:
    """The names in the first line that holds any; none in an empty file. Raises ValueError for what is no text."""
    with _rows(path) as rows:
        return _names(rows) or ()


def sheet_of(path: Path, wanted: Iterable[str] | None = None) -> Sheet:
    """The columns asked of a file, all of them by default.

    Raises ValueError, one line, for a file without columns or rows, for a column that is missing or is there twice,
    and for rows of another length than the header.
    """
    with _rows(path) as rows:
        columns = _names(rows)
        if columns is None:
            raise ValueError(f"{path}, line 1: no columns")
        if len(set(columns)) < len(columns):
            raise ValueError(f"{path}, line 1: a column is there twice: {', '.join(columns)}")
        chosen = tuple(columns if wanted is None else wanted)
        if missing := [name for name in chosen if name not in columns]:
            raise ValueError(f"{path}, line 1: no column {', '.join(missing)}")
        take = itemgetter(*(columns.index(name) for name in chosen))
        lines, found = [], []
        for line, values in rows:
            if len(values) != len(columns):
                raise ValueError(
                    f"{path}, line {line}: {count_of(len(values), 'value')} for {count_of(len(columns), 'column')}"
                )
            lines.append(line)
            found.append(take(values))
    if not found:
        raise ValueError(f"{path} has columns but no rows")
    by_column = zip(*found, strict=True) if len(chosen) > 1 else [tuple(found)]
    return Sheet(path=path, cells=dict(zip(chosen, by_column, strict=True)), lines=np.array(lines, dtype=np.int64))


def sizes(path: Path, lines: Integers, name: str, values: Floats) -> Integers:
    """Values as integers. Raises ValueError for the first that is no whole number from 0, with its line."""
    row = _first(~(np.isfinite(values) & (values >= 0) & (values < _LARGEST) & (values == np.floor(values))))
    if row is not None:
        raise ValueError(f"{path}, line {lines[row]}: {name} is {values[row]:g}, which is no size")
    return values.astype(np.int64)


def times(path: Path, lines: Integers, name: str, values: Floats) -> Floats:
    """The values. Raises ValueError for the first that is no positive number, with its line."""
    row = _first(~(np.isfinite(values) & (values > 0)))
    if row is not None:
        raise ValueError(f"{path}, line {lines[row]}: {name} is {values[row]:g}, which is no time")
    return values


def _names(rows: Iterator[tuple[int, list[str]]]) -> tuple[str, ...] | None:
    return next((tuple(map(str.strip, names)) for _, names in rows), None)


def _first(bad: Mask) -> int | None:
    found = np.flatnonzero(bad)
    return int(found[0]) if len(found) else None


@contextmanager
def _rows(path: Path) -> Iterator[Iterator[tuple[int, list[str]]]]:
    """Lines that hold something, with their numbers. Raises ValueError for what cannot be read."""
    try:
        with _opened(path) as file:
            reader = csv.reader(file)
            yield ((reader.line_num, row) for row in reader if any(map(str.strip, row)))
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


class _Unpacked(gzip.GzipFile):
    """A gzipped file that ends in OSError where it unpacks to more than a table of its size can."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "rb")
        self._left = max(_ALWAYS_ALLOWED_BYTES, _MOST_PACKED * path.stat().st_size)

    def read1(self, size: int = -1) -> bytes:
        """As GzipFile has it, which is all that reading text needs."""
        part = super().read1(size)
        self._left -= len(part)
        if self._left < 0:
            raise OSError("it unpacks to more than any table of its size")
        return part


def _opened(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return TextIOWrapper(_Unpacked(path), encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")
