"""Marks: readings of a clock where one stretch of a program ends and the next begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import sub
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Protocol

from rooflight.machine.timing import CudaDevice, Device

if TYPE_CHECKING:
    from rooflight.capture.record.recorder import record


Found = Sequence[tuple[int, int]]
"""Nanoseconds by key, in any order; a key may occur more than once. Whole numbers, so that the sums are exact."""

Mark = Callable[[int], int]
"""From now on, time belongs to the given key, a small number. Returns the key to which it belonged before."""


class Marks(Protocol):
    """From each mark on, time belongs to the mark's key."""

    @property
    def mark(self) -> Mark:
        """Set a mark."""

    def start(self, keys: int) -> None:
        """Forget all marks, and start the clock with key 0; keys will be below ``keys``."""

    def reserve(self, keys: int) -> None:
        """Keys will be below ``keys`` from now on."""

    def cut(self, key: int) -> Callable[[], Found | None]:
        """End the stretches so far and begin one with ``key``. Returns a function that returns the stretches, or None
        until they are known.
        """


class HostMarks:
    """The host's steady clock: right for CPU work. Keeps one sum per key, however many marks there are."""

    def __init__(self, clock: Callable[[], int] = perf_counter_ns) -> None:
        self._sums_ns: list[int] = [0]
        self.mark = _host_mark(clock, self._sums_ns)

    def start(self, keys: int) -> None:
        """Forget all marks, and start the clock with key 0."""
        self.reserve(keys)
        self.mark(0)
        self._sums_ns[:] = [0] * len(self._sums_ns)

    def reserve(self, keys: int) -> None:
        """Make room for the sums of that many keys."""
        self._sums_ns.extend([0] * (keys - len(self._sums_ns)))

    def cut(self, key: int) -> Callable[[], Found | None]:
        """End the stretches so far; they are known at once."""
        self.mark(key)
        found = [(key, nanoseconds) for key, nanoseconds in enumerate(self._sums_ns) if nanoseconds]
        self._sums_ns[:] = [0] * len(self._sums_ns)
        return lambda: found


def _host_mark(clock: Callable[[], int], sums_ns: list[int]) -> Mark:
    # two of these run in every module call: a closure is faster than a method
    last, last_ns = 0, clock()

    def mark(key: int) -> int:
        nonlocal last, last_ns
        now_ns = clock()
        sums_ns[last] += now_ns - last_ns
        before, last, last_ns = last, key, now_ns
        return before

    return mark


class CudaMarks:
    """CUDA events on the current stream, known once the device has passed them. Nothing ever waits for it.

    Events are reused once their step has been read, so that there are no more of them than a few steps need: read the
    oldest step first. ``device`` makes the events; tests pass one whose time they set.
    """

    def __init__(self, device: Device | None = None) -> None:
        self._device = device or CudaDevice()
        self._last = 0
        self._free: list[Any] = []
        self._open: list[tuple[int, Any]] = []

    def mark(self, key: int) -> int:
        """From now on, time belongs to ``key``."""
        before, self._last = self._last, key
        if not self._device.is_capturing():  # a graph's replay has no marks
            event = self._free.pop() if self._free else self._device.event()
            event.record()
            self._open.append((key, event))
        return before

    def start(self, keys: int) -> None:  # noqa: ARG002 - events need no room beforehand
        """Forget all marks, and start the clock with key 0."""
        self._free.clear()
        self._open.clear()
        self.mark(0)

    def reserve(self, keys: int) -> None:
        """Events need no room beforehand."""

    def cut(self, key: int) -> Callable[[], Found | None]:
        """End the stretches so far; they are known when the device has passed the last event."""
        self.mark(key)
        done, self._open = self._open, self._open[-1:]
        found: list[tuple[int, int]] = []

        def read() -> Found | None:
            if len(done) > 1:
                if not done[-1][1].query():
                    return None
                found.extend(
                    (key, round(event.elapsed_time(after) * 1e6)) for (key, event), (_, after) in pairwise(done)
                )
                self._free.extend(event for _, event in done[:-1])
                done.clear()
            return found

        return read


class RecordedMarks:
    """No clock: each op that is recorded after a mark is in the phase called as the mark's key."""

    def __init__(self) -> None:
        self.recording: record | None = None
        self._last = 0

    def mark(self, key: int) -> int:
        """Ops from now on belong to ``key``."""
        before, self._last = self._last, key
        if self.recording is not None:
            self.recording.set_phase(str(key))
        return before

    def start(self, keys: int) -> None:  # noqa: ARG002 - phases need no room beforehand
        """Forget all marks."""
        self.mark(0)

    def reserve(self, keys: int) -> None:
        """Phases need no room beforehand."""

    def cut(self, key: int) -> Callable[[], Found | None]:
        """End the stretches so far: no time was measured in them."""
        self.mark(key)
        return tuple


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
