"""Samples: the measured times of each shape, and the files of JSON lines that keep them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from statistics import median

import msgspec

_FIRST, _LAST = 2, 7
_FEW = 3


class Status(StrEnum):
    """The outcome of timing a shape."""

    OK = "ok"
    REFUSED = "refused"  # no such shape can run: heads that ranks cannot share
    UNSUPPORTED = "unsupported"  # this device, dtype or torch cannot do it
    OUT_OF_MEMORY = "out_of_memory"
    TIME_BOX = "time_box"  # took longer than its time box
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One shape: its status, the samples of each direction in seconds in the order taken, and when (ISO 8601).

    ``spent_s`` is the time of the whole row, warm-up and preparation included; ``note`` has the reason of a status that
    is not ok.
    """

    shape: Mapping[str, int]
    status: Status
    samples_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    spent_s: float = 0.0
    when: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What all rows of a file share.

    ``columns`` pair a CSV's names with the operator's parameters; ``timing`` describes how samples were taken, such as
    ``{"cache": "cold", "threads": "2"}``; ``environment`` and ``calibration`` describe the machine.
    """

    kernel: str
    operator: str
    precision: str
    device: str
    columns: tuple[tuple[str, str], ...]
    directions: tuple[str, ...]
    timing: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    calibration: Mapping[str, str] = field(default_factory=dict)
    format: str = "rooflight.samples/1"

    @property
    def parameters(self) -> tuple[str, ...]:
        """The operator's parameters, in the order of the columns."""
        return tuple(parameter for _, parameter in self.columns)


def undisturbed_s(samples_s: Sequence[float]) -> float:
    """The first decile of samples, in seconds: disturbances only make a run longer, so that the fastest samples are
    closest to the run itself. Chen and Revels, Robust benchmarking in noisy environments, 2016.
    """
    ordered = sorted(samples_s)
    whole, share = divmod(0.1 * (len(ordered) - 1), 1)
    low, high = ordered[int(whole)], ordered[min(int(whole) + 1, len(ordered) - 1)]
    return low + share * (high - low)


def middle_s(samples_s: Sequence[float]) -> float:
    """estimate-train-time's statistic, in s: mean of the 3rd to 7th smallest; of fewer than 3 samples the median."""
    if len(samples_s) < _FEW:
        return median(samples_s)
    middle = sorted(samples_s)[_FIRST:_LAST]
    return sum(middle) / len(middle)


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
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is no file of samples: {error}") from None
    expected = set(header.parameters)
    if odd := next((row for row in rows if set(row.shape) != expected), None):
        raise ValueError(f"{path} is no file of samples: a row has {', '.join(odd.shape)}")
    return header, rows
