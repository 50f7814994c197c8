"""Estimate: a time that was not measured, with its interval and its source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class Source(Enum):
    """Where an estimate comes from."""

    REGRESSED = "regressed"  # learned from measurements of such ops
    SIMILAR = "similar"  # learned from measurements of other ops that are as large
    TYPICAL = "typical"  # the bound times a factor that is usual for ops of all kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Nine of ten measured times lie between ``low_s`` and ``high_s`` if the work is like the samples that the model
    learned from; ``extrapolated``: its shape or its device is unlike them. ``time_s`` and ``high_s`` are not below
    ``bound_s``; ``low_s`` is where measured work may beat its bound. ``launch_s`` of each is the host's launch, where
    the samples were measured with it: no part of what the device takes. ``kernels_s``: the device takes no less for its
    kernels, whatever they do.
    """

    time_s: float
    low_s: float
    high_s: float
    bound_s: float
    source: Source
    extrapolated: bool
    launch_s: float = 0.0
    kernels_s: float = 0.0

    @property
    def may_beat_bound(self) -> bool:
        """Whether times below the bound are within the interval: a cache may hold the data that the bound has in main
        memory, or a convolution be computed with fewer products than it has FLOPs.
        """
        return self.low_s < self.bound_s

    def no_longer_than(self, time_s: float, *, launched: bool) -> Estimate:
        """The same where the device takes no longer than ``time_s``, or than its bound. The launch stays if it is
        ``launched``: measured on the device itself.
        """
        least_s = max(time_s, self.bound_s)
        if self.on_device.time_s <= least_s:
            return self
        launch_s = self.launch_s if launched else 0.0
        low_s, kernels_s = min(self.low_s, least_s + launch_s), min(self.kernels_s, least_s)
        return replace(self, time_s=least_s + launch_s, low_s=low_s, launch_s=launch_s, kernels_s=kernels_s)

    def with_bound(self, bound_s: float) -> Estimate:
        """The same, not below this bound: it may have been made with another."""
        if self.bound_s == bound_s:
            return self
        time_s, low_s, high_s = (max(figure, bound_s) for figure in (self.time_s, self.low_s, self.high_s))
        return replace(self, time_s=time_s, low_s=low_s, high_s=high_s, bound_s=bound_s)

    @property
    def on_device(self) -> Estimate:
        """The same without a launch, and no faster than the bound and the kernels; the low end, where it is below the
        bound with the launch, than the kernels.
        """
        if not self.launch_s:
            return self
        time_s, high_s = (
            max(self.bound_s, self.kernels_s, each - self.launch_s) for each in (self.time_s, self.high_s)
        )
        low_s = max(min(self.low_s, self.bound_s), self.kernels_s, self.low_s - self.launch_s)
        return replace(self, low_s=low_s, time_s=time_s, high_s=high_s, launch_s=0.0)

    def __post_init__(self) -> None:
        assert 0 <= self.low_s <= self.time_s <= self.high_s
        assert self.bound_s <= self.time_s
