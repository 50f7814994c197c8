"""Rows: the outcome and the samples of each shape, and the header that describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

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
    kept = sorted(samples_s)[_FIRST:_LAST]
    return sum(kept) / len(kept)
