"""Stamps: points in time that are taken in a step and read after it, so that reading costs the step nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import sub
from time import perf_counter_ns
from typing import Any, Protocol

from rooflight.machine.timing import CudaDevice, Device


class Stamps(Protocol):
    """A source of points in time."""

    @property
    def stamp(self) -> Callable[[], Any]:
        """Take one now. None while a CUDA graph is captured, since its ops have no time."""

    def passed(self, stamp: Any) -> bool:
        """Whether a stamp can be read."""

    def between_ns(self, stamps: Sequence[Any]) -> list[int]:
        """Nanoseconds from each stamp to the next."""

    def release(self, stamps: Sequence[Any]) -> None:
        """Release stamps that will not be read again."""


class HostStamps:
    """The host's steady clock: right for CPU work. A stamp is its nanoseconds."""

    def __init__(self, clock: Callable[[], int] = perf_counter_ns) -> None:
        self.stamp = clock

    def passed(self, _stamp: int) -> bool:
        """Always: a number can be read at once."""
        return True

    def between_ns(self, stamps: Sequence[int]) -> list[int]:
        """Differences."""
        return list(map(sub, stamps[1:], stamps))

    def release(self, stamps: Sequence[int]) -> None:
        """Numbers need no release."""


class CudaStamps:
    """CUDA events on the current stream, known once the device has passed them. Nothing ever waits for it.

    Events are reused after they are released, so that there are no more of them than a few steps need. ``device`` makes
    the events; tests pass one whose time they set.
    """

    def __init__(self, device: Device | None = None) -> None:
        self._device = device or CudaDevice()
        self._free: list[Any] = []

    def stamp(self) -> Any:
        """An event that is queued now; None while a graph is captured, since its replays have no stamps."""
        if self._device.is_capturing():
            return None
        event = self._free.pop() if self._free else self._device.event()
        event.record()
        return event

    def passed(self, stamp: Any) -> bool:
        """Whether the device has passed it."""
        return bool(stamp.query())

    def between_ns(self, stamps: Sequence[Any]) -> list[int]:
        """The device's times, in whole nanoseconds, so that sums are exact."""
        return [round(one.elapsed_time(other) * 1e6) for one, other in pairwise(stamps)]

    def release(self, stamps: Sequence[Any]) -> None:
        """Reuse these events."""
        self._free.extend(stamps)
