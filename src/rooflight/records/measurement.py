"""Measurement: the times of a recorded step, and whether they are of that step. Spread: a value over many of a kind."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean, median, median_high, stdev
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.records.timeline import HostTime, Timeline
from rooflight.records.visible import visible

Float64 = NDArray[np.float64]
Name = TypeVar("Name")

BUSY_SHARE = 0.05
"""If other programs take at least this share of the CPU during a measurement, reports doubt its roofs and times."""
NO_WORK = "launches alone"
"""The clock of a trace that has calls which launch a device's work, and none of that work."""
SAME_STEP = 0.9
"""Share of calls that a timed step must have in common with the recorded one to count as the same step."""


@contextmanager
def undisturbed() -> Iterator[None]:
    """No garbage is collected meanwhile: in the middle of a sample, or where millions of objects are made to stay."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Times of a recorded step, taken in passes of their own.

    ``wall_samples_s`` are whole steps with no instrument running; ``op_samples_s`` has one row per profiled step and
    one column per record, NaN for a record without a time; ``op_starts_s``, of the same shape or without rows, has when
    each began, counted from the start of its step; ``op_own_s``, likewise, what it took of the device's time, where
    work that ran at the same time is shared out; ``clock`` names the clock.

    ``others_share`` is the share of the CPU, of 1, that other programs took while whole steps were timed.
    ``same_calls`` is the share of calls, of the same op on the same shapes, that the recorded step and the timed one
    have in common. Both are None where they are not known. ``timeline`` is what the device did meanwhile, ``host``
    what the host's thread did; None where that was not measured.
    """

    wall_samples_s: Float64
    op_samples_s: Float64
    clock: str
    op_starts_s: Float64 = field(default_factory=lambda: np.empty((0, 0)))
    op_own_s: Float64 = field(default_factory=lambda: np.empty((0, 0)))
    others_share: float | None = None
    same_calls: float | None = None
    timeline: Timeline | None = None
    host: HostTime | None = None

    @property
    def disturbed(self) -> bool:
        """Whether other programs took so much of the CPU that the times may be theirs."""
        return self.others_share is not None and self.others_share >= BUSY_SHARE

    @property
    def of_the_session(self) -> bool:
        """Whether the timed step is the recorded one, as far as is known; if not, no bound is compared with it."""
        return self.same_calls is None or self.same_calls >= SAME_STEP

    def __repr__(self) -> str:
        steps, wall = count_of(len(self.wall_samples_s), "step"), self.wall_s
        mean = "" if wall is None else f", mean {Quantity(wall, 's')}"
        return visible(f"Measurement({steps}{mean}, {self.clock})")

    @property
    def wall_s(self) -> float | None:
        """Mean time of a whole step: what many of them take, those that are rarely slow included."""
        return float(np.mean(self.wall_samples_s)) if len(self.wall_samples_s) else None

    @property
    def op_s(self) -> Float64:
        """Median time of each record, NaN where there is none."""
        samples = self.op_samples_s
        if samples.shape[0] == 0:
            return np.full(samples.shape[1], np.nan)
        with np.errstate(invalid="ignore"):
            return np.asarray(np.median(samples, axis=0), dtype=np.float64)


def other_step(measurement: Measurement) -> str:
    """In a sentence, how a timed step differs from the recorded one; empty where it is the recorded one."""
    if measurement.of_the_session:
        return ""
    found = measurement.same_calls
    if not found:
        return (
            "the timed step and the recorded one have no call in common: it is another step, its shapes change from "
            "run to run, or its ops ran in another thread or process, where a recording does not see them; its time is "
            "not compared with the bound"
        )
    return (
        f"the timed step and the recorded one have only {percent(found)} of their calls in common: it is another step, "
        "or its shapes change from run to run; its time is not compared with the bound"
    )


@dataclass(frozen=True, slots=True)
class Spread(Generic[Name]):
    """One value of each of several ranks, nodes or runs, by name, all known; how far they differ.

    Only ``mean`` and ``std`` are defined (None) where there are too few values; the others need one. Of equal values
    the first counts as the least or the most.
    """

    values: Mapping[Name, float]

    @classmethod
    def known(cls, values: Mapping[Name, float | None]) -> Spread[Name]:
        """The spread of those values that are not None."""
        return cls({name: value for name, value in values.items() if value is not None})

    @property
    def count(self) -> int:
        """How many values there are."""
        return len(self.values)

    @property
    def least_name(self) -> Name:
        """Whose value is the least."""
        return min(self.values, key=self.values.__getitem__)

    @property
    def most_name(self) -> Name:
        """Whose value is the most."""
        return max(self.values, key=self.values.__getitem__)

    @property
    def least(self) -> float:
        """The least value."""
        return self.values[self.least_name]

    @property
    def most(self) -> float:
        """The greatest value."""
        return self.values[self.most_name]

    @property
    def width(self) -> float:
        """The most less the least."""
        return self.most - self.least

    @property
    def median(self) -> float:
        """The middle value, or the mean of the two middle ones."""
        return median(self.values.values())

    @property
    def median_high(self) -> float:
        """The middle value, or the higher of the two middle ones."""
        return median_high(self.values.values())

    @property
    def mean(self) -> float | None:
        """The mean; None of no values."""
        return fmean(self.values.values()) if self.values else None

    @property
    def std(self) -> float | None:
        """The standard deviation of a sample (n - 1); None of fewer than two values."""
        return stdev(self.values.values()) if self.count > 1 else None
