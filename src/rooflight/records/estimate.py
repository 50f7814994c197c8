"""Estimate: a time that was not measured, and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Source(Enum):
    """Where an estimate comes from."""

    REGRESSED = "regressed"  # learned from measurements of such ops
    SIMILAR = "similar"  # learned from measurements of other ops that are as large
    TYPICAL = "typical"  # the bound times what ops of any kind usually take of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """``time_s`` lies between ``low_s`` and ``high_s`` nine times in ten, if what it was learned from is like what is
    asked; ``extrapolated`` says that shape or device lie outside of that. None of the three is below ``bound_s``.
    """

    time_s: float
    low_s: float
    high_s: float
    bound_s: float
    source: Source
    extrapolated: bool

    def __post_init__(self) -> None:
        assert self.bound_s <= self.low_s <= self.time_s <= self.high_s
