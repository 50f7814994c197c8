"""Merging: the parts of a sweep as one CSV, as estimate-train-time merges them; what must stay apart is refused."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from rooflight.costs.operators.estimate_train_time import TIMES
from rooflight.records.document import Document
from rooflight.records.files import write_whole
from rooflight.records.quantity import count_of
from rooflight.records.report import Report
from rooflight.records.samples import SUFFIX, read
from rooflight.sampling.store import csv_lines

_NAME = re.compile(r"(?P<device>[^_]+)_(?P<kernel>.+)_(?P<precision>fp\d+|bf16|[a-z]+\d+\w*)(?P<part>_\d+_\d+)?")
_TIME_COLUMNS = tuple(dict.fromkeys(name for names in TIMES.values() for name in names))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFile:
    """Rows of one file. ``subject`` is device, kernel and precision, from the file's name or header."""

    path: Path
    subject: tuple[str, str, str]
    columns: tuple[str, ...]
    rows: tuple[tuple[float, ...], ...]


class MergeDocument(Document, frozen=True, kw_only=True, tag="rooflight.merge/1"):
    """What a merge wrote: of ``files``, without ``duplicates``; ``repeated`` shapes were measured more than once and
    keep each of their rows.
    """

    path: str
    files: int
    rows: int
    duplicates: int
    repeated: int


def merge(paths: Sequence[Path], out: Path | None = None) -> MergeDocument:
    """Write the rows of all files, each once, sorted by shape, to ``out`` or ``{GPU}_{operator}_{precision}.csv``
    beside the first. The files are not touched.

    Raises ValueError for files of different devices, operators, precisions or columns, for missing columns, for
    times that are not positive numbers, and where ``out`` is one of the files.
    """
    if not paths:
        raise ValueError("nothing to merge: name CSV or jsonl files")
    files = [_sample_file(path) for path in paths]
    first = files[0]
    for file in files[1:]:
        for what, here, there in zip(("device", "operator", "precision"), first.subject, file.subject, strict=True):
            if here != there:
                raise ValueError(f"{file.path} is of {what} {there}, {first.path} of {here}: merge them separately")
        if file.columns != first.columns:
            raise ValueError(f"{file.path} has columns {', '.join(file.columns)}, not {', '.join(first.columns)}")
    target = out or first.path.parent / f"{'_'.join(first.subject)}.csv"
    if any(target.resolve() == path.resolve() for path in paths):
        raise ValueError(f"{target} is one of the files to merge: choose another --out")
    read_rows = [row for file in files for row in file.rows]
    rows = sorted(dict.fromkeys(read_rows))
    count = sum(name not in _TIME_COLUMNS for name in first.columns)
    lines = [",".join(first.columns), *(",".join(_texts(row, first.columns)) for row in rows)]
    write_whole(target, "\n".join(lines) + "\n")
    return MergeDocument(
        path=str(target),
        files=len(files),
        rows=len(rows),
        duplicates=len(read_rows) - len(rows),
        repeated=len(rows) - len({row[:count] for row in rows}),
    )


def _sample_file(path: Path) -> SampleFile:
    try:
        if path.suffix == SUFFIX:
            header, found = read(path)
            subject = (header.device, header.kernel, header.precision)
            lines = list(csv_lines(header, found))
        else:
            lines = path.read_text(encoding="utf-8").splitlines()
            named = _NAME.fullmatch(path.stem)
            if named is None:
                raise ValueError(f"{path.name} does not name its device: name it GPU_operator_precision.csv")
            subject = named["device"], named["kernel"], named["precision"]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    columns, *rows = list(csv.reader(lines)) or [[]]
    times = [name for name in columns if name in _TIME_COLUMNS]
    if tuple(times) not in TIMES.values() or columns[-len(times) :] != times or len(times) == len(columns):
        raise ValueError(f"{path} has columns {', '.join(columns)}: shapes, then F_dur(us), B_dur(us) or dur(us)")
    return SampleFile(
        path=path,
        subject=subject,
        columns=tuple(columns),
        rows=tuple(_numbers(path, number, columns, row) for number, row in enumerate(rows, start=2) if row),
    )


def _numbers(path: Path, line: int, columns: Sequence[str], row: Sequence[str]) -> tuple[float, ...]:
    if len(row) != len(columns):
        raise ValueError(f"{path}, line {line}: {count_of(len(row), 'value')} for {count_of(len(columns), 'column')}")
    try:
        values = tuple(float(value) for value in row)
    except ValueError:
        raise ValueError(f"{path}, line {line}: {', '.join(row)} are not all numbers") from None
    for name, value in zip(columns, values, strict=True):
        if not isfinite(value) or value < 0 or (value == 0 and name in _TIME_COLUMNS):
            raise ValueError(f"{path}, line {line}: {name} is {value:g}")
    return values


def _texts(row: Sequence[float], columns: Sequence[str]) -> Iterator[str]:
    for name, value in zip(columns, row, strict=True):
        yield f"{value:.12g}" if name in _TIME_COLUMNS or value % 1 else str(int(value))


def report_of(merged: MergeDocument) -> Report:
    """The file, and how many rows of how many files it has."""
    more = f", {count_of(merged.duplicates, 'duplicate')} dropped" if merged.duplicates else ""
    more += f", {merged.repeated} measured again" if merged.repeated else ""
    return Report(
        title=f"Merged into {merged.path}",
        data=merged,
        conclusion=f"{count_of(merged.rows, 'row')} of {count_of(merged.files, 'file')}{more}",
    )
