"""Whether a file is a trace, by its first bytes."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Final

_SUFFIXES: Final = (".json", ".gz")
_PACKED: Final = (".json.gz", ".json.zst", ".json.xz", ".json.bz2", ".json.zip")  # one reader says to unpack the others
_GZIP: Final = b"\x1f\x8b"
_SQLITE: Final = b"SQLite format 3\x00"
_LOOKED_AT: Final = 1 << 20
_MARKS: Final = (b'"traceEvents"', b'"deviceProperties"')


def is_database(path: Path) -> bool:
    """Whether a file is a SQLite database."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def is_trace(path: Path) -> bool:
    """Whether the file has the name and the begin of a trace of torch's profiler. Every ``.json.gz`` counts as one,
    since no other input of Rooflight has that name, so that a damaged one is reported as damaged. So does a SQLite
    database: Nsight Systems exports such.
    """
    if is_database(path):
        return True
    if path.name.endswith(_PACKED):
        return path.is_file()
    if path.suffix not in _SUFFIXES or not path.is_file():
        return False
    with path.open("rb") as file:
        begin = file.read(_LOOKED_AT)
    if begin.startswith(_GZIP):
        try:
            begin = zlib.decompressobj(wbits=31).decompress(begin, _LOOKED_AT)
        except zlib.error:
            return True
    return any(mark in begin for mark in _MARKS) or (begin.lstrip()[:1] == b"[" and b'"ph"' in begin)
