"""Files of samples: JSON lines, a header first, then one row per shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from rooflight.records.samples import Header, Row

SUFFIX = ".jsonl"


class Rows(Mapping[tuple[int, ...], Row]):
    """The rows of a file by shape, and the seconds they took together."""

    def __init__(self, parameters: tuple[str, ...]) -> None:
        self.parameters = parameters
        self.spent_s = 0.0
        self._rows: dict[tuple[int, ...], Row] = {}

    def key(self, shape: Mapping[str, int]) -> tuple[int, ...]:
        """The values of a shape, in the order of the columns."""
        return tuple(shape[name] for name in self.parameters)

    def add(self, row: Row) -> None:
        """Add a row. Raises ValueError if its shape has a row already."""
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


def read(path: Path) -> tuple[Header, Rows]:
    """The header and rows of a file of samples, without a cut-off last line. Raises ValueError for any other file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    header, found = parse(content[: content.rfind(b"\n") + 1], path)
    rows = Rows(header.parameters)
    for row in found:
        rows.add(row)
    return header, rows


def parse(content: bytes, path: Path) -> tuple[Header, list[Row]]:
    """Header and rows of whole lines. Raises ValueError, naming ``path``, for anything else."""
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
