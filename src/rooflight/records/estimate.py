"""Estimate: a time that was not measured, with its interval and its source."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Source(Enum):
    """Where an estimate comes from."""

    REGRESSED = "regressed"  # learned from measurements of such ops
    SIMILAR = "similar"  # learned from measurements of other ops that are as large
    TYPICAL = "typical"  # the bound times a factor that is usual for ops of all kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Nine of ten measured times lie between ``low_s`` and ``high_s`` if the work is like the samples that the model
    learned from; ``extrapolated``: its shape or its device is unlike them. None of the three times is below
    ``bound_s``.
    """

    time_s: float
    low_s: float
    high_s: float
    bound_s: float
    source: Source
    extrapolated: bool

    def __post_init__(self) -> None:
        assert self.bound_s <= self.low_s <= self.time_s <= self.high_s
