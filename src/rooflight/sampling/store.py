"""The store: rows appended to a file of JSON lines; a process killed at any moment loses none and doubles none."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

import msgspec

from rooflight.sampling.operator import Shape
from rooflight.sampling.page import TIMES
from rooflight.sampling.rows import Header, Row, Status, middle_s

SUFFIX = ".jsonl"
_READ_BYTES = 1 << 20


class Rows(Mapping[tuple[int, ...], Row]):
    """The rows of a file by shape, and the seconds they took together."""

    def __init__(self, parameters: tuple[str, ...]) -> None:
        self.parameters = parameters
        self.spent_s = 0.0
        self._rows: dict[tuple[int, ...], Row] = {}

    def key(self, shape: Shape) -> tuple[int, ...]:
        """The values of a shape, in the order of the columns."""
        return tuple(shape[name] for name in self.parameters)

    def add(self, row: Row) -> None:
        """Take in a row. Raises ValueError for a shape that is there already."""
        key = self.key(row.shape)
        if key in self._rows:
            raise ValueError(f"shape {key} has a row already")
        self._rows[key] = row
        self.spent_s += row.spent_s

    def __getitem__(self, key: tuple[int, ...]) -> Row:
        return self._rows[key]

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


class Store:
    """A file of rows that one process at a time appends to.

    Opening it drops a last line that was cut off, and takes up the rows that are there. Raises ValueError where the
    file was written for another operator, precision or device, or is being written by another process.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self.path, self.header = path, header
        self.rows = Rows(header.parameters)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._take_up()
        except BaseException:
            os.close(self._file)
            raise

    def append(self, row: Row) -> None:
        """Add a row: one write at the end of the file, all of it or a torn line that the next opening drops."""
        self.rows.add(row)
        self._write(row)

    def write_csv(self) -> Path:
        """Write the page's CSV beside the file, in the place of an earlier one. Returns its path."""
        path = self.path.with_suffix(".csv")
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text("".join(csv_lines(self.header, self.rows)), encoding="utf-8")
        temporary.replace(path)
        return path

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self.close()

    def _take_up(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel lets go when the process dies
        except OSError:
            raise ValueError(f"{self.path} is being written by another process") from None
        content = _content(self._file)
        whole = content[: content.rfind(b"\n") + 1]
        if not whole and not _is_torn_header(content):
            raise ValueError(f"{self.path} is no file of samples: choose another --out")
        found, rows = _parse(whole, self.path) if whole else (self.header, [])
        if len(whole) < len(content):
            os.ftruncate(self._file, len(whole))
        if not whole:
            self._write(self.header)
            return
        for name in ("kernel", "operator", "precision", "device", "columns", "directions"):
            there, here = getattr(found, name), getattr(self.header, name)
            if there != here:
                raise ValueError(f"{self.path} holds samples of {name} {there}, not {here}: choose another --out")
        before, now = found.timing.get("cache"), self.header.timing.get("cache")
        if before != now:
            raise ValueError(f"{self.path} holds samples of a {before} cache, not a {now} one: choose another --out")
        self.header = found
        for row in rows:
            self.rows.add(row)

    def _write(self, record: Row | Header) -> None:
        line = msgspec.json.encode(record) + b"\n"
        if os.write(self._file, line) != len(line):
            raise OSError(f"{self.path}: the disk is full")


def read(path: Path) -> tuple[Header, Rows]:
    """The header and rows of a file, a cut-off last line left out. Raises ValueError for any other file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    header, found = _parse(content[: content.rfind(b"\n") + 1], path)
    rows = Rows(header.parameters)
    for row in found:
        rows.add(row)
    return header, rows


def csv_lines(header: Header, rows: Rows) -> Iterator[str]:
    """The page's CSV: its columns, one line for each row that is ok, times in microseconds."""
    yield ",".join((*(name for name, _ in header.columns), *TIMES[header.directions])) + "\n"
    for key, row in rows.items():
        if row.status is Status.OK:
            times = (f"{middle_s(row.samples_s[direction]) * 1e6:.3f}" for direction in header.directions)
            yield ",".join((*map(str, key), *times)) + "\n"


def _parse(content: bytes, path: Path) -> tuple[Header, list[Row]]:
    first, *lines = content.splitlines() or [b""]
    try:
        header = msgspec.json.decode(first, type=Header)
        rows = [msgspec.json.decode(line, type=Row) for line in lines]
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"{path} is no file of samples: {error}") from None
    expected = set(header.parameters)
    if odd := next((row for row in rows if set(row.shape) != expected), None):
        raise ValueError(f"{path} is no file of samples: a row has {', '.join(odd.shape)}")
    return header, rows


def _is_torn_header(content: bytes) -> bool:
    """Whether this may be what a killed process wrote of its first line."""
    begin = b'{"kernel":'
    return content.startswith(begin[: len(content)])


def _content(file: int) -> bytes:
    parts = []
    os.lseek(file, 0, os.SEEK_SET)
    while part := os.read(file, _READ_BYTES):
        parts.append(part)
    return b"".join(parts)
