"""Measured tables: rows of shapes and of the seconds they took, in arrays, and the sheets they come from: columns of a
CSV, plain or gzipped, as text and as checked numbers. And the timed ops of sessions.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import TextIOWrapper
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, TextIO

import numpy as np
from numpy.typing import NDArray

from rooflight.costs.cost import Uncosted
from rooflight.costs.operators import registry
from rooflight.costs.operators.operator import Operator
from rooflight.hardware.devices import get
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.prediction.work.facts import Costed, bounded
from rooflight.records.dtypes import dtype_name
from rooflight.records.quantity import count_of
from rooflight.records.session import Session
from rooflight.records.signature import OpSignature
from rooflight.roofline.bound import as_it_ran, float32_rules

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredTable:
    """Rows of one operator on one device in one precision: those of a file, or some of a file that holds several.

    ``operator`` is the name of a registered operator where ``known``, otherwise the file's own; ``kernel`` is always
    the file's (``allreduce_large``). ``parameters`` are a known operator's, in its order, defaults filled in.
    ``shapes`` [rows, parameters]; ``seconds`` [rows, directions], positive; ``directions`` are the operator's, or the
    first of them; ``lines`` [rows] are the lines of ``source``, the first of which is 1. ``label`` is what a report
    calls the table, whose device it names beside it, ``unit_s`` the unit in which the source has its times.
    ``features`` [features, parameters]: those that a user's function declares, as powers of its parameters.
    """

    operator: str
    kernel: str
    device: DeviceSpec
    precision: str
    parameters: tuple[str, ...]
    shapes: Integers
    seconds: Floats
    directions: tuple[str, ...]
    source: Path
    lines: Integers
    known: bool = True
    label: str = ""
    unit_s: float = 1e-6
    features: Floats | None = None

    def __len__(self) -> int:
        return len(self.shapes)

    @property
    def dtype(self) -> str:
        """The precision by torch's name: ``float16`` for ``fp16``."""
        return dtype_name(self.precision)

    def shape(self, row: int) -> dict[str, int]:
        """The shape of a row, by parameter."""
        return dict(zip(self.parameters, map(int, self.shapes[row]), strict=True))

    def where(self, row: int) -> str:
        """File and line of a row, as an error names them."""
        return f"{self.source}, line {self.lines[row]}"

    def subset(self, rows: Mask | Integers) -> MeasuredTable:
        """Some rows: a mask of all, or their numbers."""
        return replace(self, shapes=self.shapes[rows], seconds=self.seconds[rows], lines=self.lines[rows])


def table_of(
    operator: Operator | None, columns: Mapping[str, Integers], *, kernel: str, source: Path, **rest: Any
) -> MeasuredTable:
    """A table; of a file's own kernel without an operator. Raises ValueError for parameters that the operator has not,
    for some that it needs and for directions that are not its own.
    """
    if operator is None:
        shapes = np.stack(list(columns.values()), axis=1)
        return MeasuredTable(
            operator=kernel, kernel=kernel, parameters=tuple(columns), shapes=shapes, source=source, known=False, **rest
        )
    has = ", ".join(operator.parameters)
    if unknown := [name for name in columns if name not in operator.parameters]:
        raise ValueError(f"{source}, line 1: {operator.name} has no parameter {', '.join(unknown)}: it has {has}")
    missing = [name for name in operator.parameters if name not in columns and name not in operator.defaults]
    if missing:
        raise ValueError(f"{source}, line 1: no column {', '.join(missing)}: {operator.name} has {has}")
    if rest["directions"] != operator.directions[: len(rest["directions"])]:
        raise ValueError(f"{source}, line 1: {operator.name} is timed {' and '.join(operator.directions)}")
    rows = len(rest["seconds"])
    whole = [columns.get(name, np.full(rows, operator.defaults.get(name, 0))) for name in operator.parameters]
    return MeasuredTable(
        operator=operator.name,
        kernel=kernel,
        parameters=operator.parameters,
        shapes=np.stack(whole, axis=1).astype(np.int64),
        source=source,
        **rest,
    )


def operator_called(kernel: str, *others: str) -> Operator | None:
    """The registered operator of the first of these names that is one."""
    known = registry.names()
    name = next((each for each in (kernel, *others) if each in known), None)
    return None if name is None else registry.find(name)


def precision_called(name: str, path: Path) -> str:
    """A precision that is one. Raises ValueError, naming ``path``, for an unknown one."""
    try:
        dtype_name(name)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return name


def device_called(label: str, where: Path | str) -> DeviceSpec:
    """The device of a name as files bear it, without blanks, as ``rooflight.devices.get`` finds it.

    Raises ValueError, naming ``where`` it stands, for an unknown device.
    """
    try:
        return get(label).as_listed
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredOp:
    """A row: an op, the precision at which its float32 products ran, and the seconds of each of its calls."""

    op: OpSignature
    precision: str
    samples_s: Floats

    def on(self, device: DeviceSpec) -> Costed | Uncosted:
        """What it must do, and its bound on a device."""
        return bounded((self.op,), as_it_ran(device, self.precision))[0]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredOps:
    """The timed ops of a session, a row for each distinct signature. ``kernel``, ``operator``, ``known`` and ``label``
    are what reports call it beside tables.
    """

    source: Path
    device: DeviceSpec
    rows: tuple[MeasuredOp, ...]
    kernel: str = "ops"
    operator: str = "ops"
    known: bool = True

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def label(self) -> str:
        """The name of the file."""
        return self.source.name

    @property
    def seconds(self) -> Floats:
        """The median time of each row."""
        return np.array([float(np.median(row.samples_s)) for row in self.rows], dtype=np.float64)


def measured_ops(session: Session, device: DeviceSpec, source: Path) -> MeasuredOps:
    """The rows of a session that was timed on a device. Calls that took no time launched nothing, and are left out.

    Raises ValueError for a session without times of ops, and for one whose timed step is not the recorded one.
    """
    measurement = session.measurement
    if measurement is None or not len(measurement.op_samples_s) or not measurement.of_the_session:
        raise ValueError(f"{source} has no times of ops: nothing can be learned from it, or checked")
    rules = float32_rules(session.environment, device)
    with np.errstate(invalid="ignore"):
        chosen = session.counted & (measurement.op_samples_s > 0)  # [steps, records]
    numbers = np.broadcast_to(session.columns.signature, chosen.shape)[chosen]
    seconds = measurement.op_samples_s[chosen]
    if not len(numbers):
        raise ValueError(f"{source} has no op with a time: nothing can be learned from it, or checked")
    order = np.argsort(numbers, kind="stable")
    distinct, first = np.unique(numbers[order], return_index=True)
    samples = np.split(seconds[order], first[1:])
    signatures = [session.signatures[number] for number in distinct.tolist()]
    return MeasuredOps(
        source=source,
        device=device,
        rows=tuple(
            MeasuredOp(op=op, precision=rules.precision_of(op), samples_s=each)
            for op, each in zip(signatures, samples, strict=True)
        ),
    )


SUFFIXES: Final = (".csv", ".csv.gz")
_MOST_PACKED: Final = 200  # times its size that a file may unpack to: measured tables do to 5 to 25 times
_ALWAYS_ALLOWED_BYTES: Final = 1 << 28  # whatever the size of the file
_SHORTEST, _LONGEST = 1e-12, 1e15  # of a time in s, ms or µs: no clock counts less, and nobody waits longer
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
    row = _first(~((values >= _SHORTEST) & (values <= _LONGEST)))
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
