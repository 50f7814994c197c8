"""Readings of a clock that cut a step into stretches: the host's, or CUDA events, known once the device passed them.

A *stamp* is one reading; the log of buckets keeps them and computes times after the step. A *mark* is where time of one
key ends and that of the next begins; marks sum the time of each key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import sub
from time import perf_counter_ns
from typing import Any

from rooflight.hardware.machine.timing import CudaDevice, Device

Found = Sequence[tuple[int, int]]
"""Nanoseconds by key, in any order; a key may occur more than once. Whole numbers, so that the sums are exact."""


class HostStamps:
    """The host's steady clock: right for CPU work. A stamp is its nanoseconds."""

    def __init__(self, clock: Callable[[], int] = perf_counter_ns) -> None:
        self.stamp = clock

    def passed(self, _stamp: int) -> bool:
        """Whether a stamp can be read: at once."""
        return True

    def between_ns(self, stamps: Sequence[int]) -> list[int]:
        """Nanoseconds from each stamp to the next."""
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
        """Nanoseconds from each stamp to the next, whole, so that sums are exact."""
        return [round(one.elapsed_time(other) * 1e6) for one, other in pairwise(stamps)]

    def release(self, stamps: Sequence[Any]) -> None:
        """Reuse events that will not be read again."""
        self._free.extend(stamps)


class HostMarks:
    """Marks by the host's steady clock. Keeps one sum per key, however many marks there are.

    ``mark(key)``: from now on, time belongs to ``key``, a small number; returns the key to which it belonged before.
    """

    def __init__(self, clock: Callable[[], int] = perf_counter_ns) -> None:
        self._sums_ns: list[int] = [0]
        self.mark = _host_mark(clock, self._sums_ns)

    def start(self, keys: int) -> None:
        """Forget all marks, and start the clock with key 0; keys will be below ``keys``."""
        self.reserve(keys)
        self.mark(0)
        self._sums_ns[:] = [0] * len(self._sums_ns)

    def reserve(self, keys: int) -> None:
        """Keys will be below ``keys`` from now on."""
        self._sums_ns.extend([0] * (keys - len(self._sums_ns)))

    def cut(self, key: int) -> Callable[[], Found | None]:
        """End the stretches so far and begin one with ``key``. Returns a function that returns the stretches, or None
        until they are known.
        """
        self.mark(key)
        found = [(key, nanoseconds) for key, nanoseconds in enumerate(self._sums_ns) if nanoseconds]
        self._sums_ns[:] = [0] * len(self._sums_ns)
        return lambda: found


def _host_mark(clock: Callable[[], int], sums_ns: list[int]) -> Callable[[int], int]:
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
    """Marks by ``CudaStamps``. Events are reused once their step has been read: read the oldest step first."""

    def __init__(self, device: Device | None = None) -> None:
        self._stamps = CudaStamps(device)
        self._last = 0
        self._open: list[tuple[int, Any]] = []

    def mark(self, key: int) -> int:
        """From now on, time belongs to ``key``. Returns the key to which it belonged before."""
        before, self._last = self._last, key
        if (stamp := self._stamps.stamp()) is not None:
            self._open.append((key, stamp))
        return before

    def start(self, keys: int) -> None:  # noqa: ARG002 - events need no room beforehand
        """Forget all marks, and start the clock with key 0."""
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
                keys, stamps = zip(*done, strict=True)
                if not self._stamps.passed(stamps[-1]):
                    return None
                found.extend(zip(keys, self._stamps.between_ns(stamps), strict=False))  # one key more than stretches
                self._stamps.release(stamps[:-1])
                done.clear()
            return found

        return read
