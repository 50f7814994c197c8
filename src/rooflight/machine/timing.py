"""Repeated timing of one call: raw samples are kept, statistics are derived from them."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from rooflight.machine.clocks import Clock, SteadyClock


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of each repetition, in the order they were taken."""

    samples_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.samples_s:
            raise ValueError("a timing needs at least one sample")

    @property
    def median_s(self) -> float:
        """The median time of a run."""
        return statistics.median(self.samples_s)

    @property
    def minimum_s(self) -> float:
        """The time of the least disturbed run. Roofs are computed from it."""
        return min(self.samples_s)

    @property
    def spread(self) -> float:
        """Interquartile range over the median: 0 is perfectly steady, above 0.1 something disturbed it."""
        if len(self.samples_s) < 2 or self.median_s == 0:
            return 0.0
        first, _, third = statistics.quantiles(self.samples_s, n=4, method="inclusive")
        return (third - first) / self.median_s


def measure(
    run: Callable[[], object],
    *,
    clock: Clock | None = None,
    spread: float = 0.02,
    box_s: float = 0.5,
    min_samples: int = 5,
    max_samples: int = 10_000,
    warmups: int = 1,
) -> Timing:
    """Repeat ``run`` until the spread of its samples is at most ``spread`` or ``box_s`` seconds have passed.

    The box includes the warm-ups. At least one sample is always taken, and ``min_samples`` unless the box ends first.
    ``spread=0`` uses the whole box (or ``max_samples``), which suits a search for the fastest run.
    """
    if min_samples < 1 or max_samples < min_samples or box_s <= 0 or spread < 0 or warmups < 0:
        raise ValueError("timing needs min_samples >= 1, max_samples >= min_samples, box_s > 0, spread, warmups >= 0")
    clock = clock or SteadyClock()
    end_ns = clock.now_ns() + round(box_s * 1e9)
    for _ in range(warmups):
        run()
    samples: list[float] = []
    next_check = min_samples
    while len(samples) < max_samples:
        samples.append(clock.time_s(run))
        if clock.now_ns() >= end_ns:
            break
        if spread > 0 and len(samples) >= next_check:
            if Timing(samples_s=tuple(samples)).spread <= spread:
                break
            next_check = len(samples) + max(1, len(samples) // 4)  # sorting each time would be slow
    return Timing(samples_s=tuple(samples))
