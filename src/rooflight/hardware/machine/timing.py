"""Clocks, and repeated timing of one call with them: raw samples are kept, statistics derived."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from rooflight.hardware.machine.hardware import data_caches
from rooflight.hardware.machine.memory import Memory, cuda_memory


class Clock(Protocol):
    """The methods of a clock that timing calls."""

    def now_ns(self) -> int:
        """Host time that never goes back, for time boxes."""

    def time_s(self, run: Callable[[], object]) -> float:
        """Call ``run`` once and return the seconds it took."""


class SteadyClock:
    """The host's steady clock: right for CPU work, and for CUDA work only where ``run`` waits for it."""

    def now_ns(self) -> int:
        """``time.perf_counter_ns``: an int, so that nothing is rounded however long the machine has been up."""
        return time.perf_counter_ns()

    def time_s(self, run: Callable[[], object]) -> float:
        """Seconds between just before the call and just after it."""
        start_ns = time.perf_counter_ns()
        run()
        return (time.perf_counter_ns() - start_ns) / 1e9


class CudaEvents:
    """Device time of the current stream between two events around the call; the host's queueing is hidden.

    ``flush`` is called before each sample, outside the timed span: pass ``cold_cache(...)`` to time from memory.
    The device spins first, so that the whole call is queued before its first kernel starts and no launch gap is timed.
    """

    def __init__(self, *, flush: Callable[[], object] | None = None, spin_cycles: int = 200_000) -> None:
        self._flush = flush
        self._spin_cycles = spin_cycles

    def now_ns(self) -> int:
        """Host time, since time boxes limit how long the user waits."""
        return time.perf_counter_ns()

    def time_s(self, run: Callable[[], object]) -> float:
        """Seconds of device time, after waiting for the call to end."""
        import torch

        event: Any = torch.cuda.Event
        start, end = event(enable_timing=True), event(enable_timing=True)
        if self._flush is not None:
            self._flush()
        if self._spin_cycles and hasattr(torch.cuda, "_sleep"):
            torch.cuda._sleep(self._spin_cycles)
        start.record()
        run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3


class ColdClock:
    """Another clock that empties the caches before each sample, outside the timed span."""

    def __init__(self, clock: Clock, flush: Callable[[], object]) -> None:
        self._clock, self._flush = clock, flush

    def now_ns(self) -> int:
        """The host time of the other clock."""
        return self._clock.now_ns()

    def time_s(self, run: Callable[[], object]) -> float:
        """Seconds of the call alone."""
        self._flush()
        return self._clock.time_s(run)


def flush_of(device: str) -> Callable[[], object]:
    """A call that fills the caches of ``"cpu"``, ``"cuda"`` or ``"cuda:1"`` with something else."""
    if not device.startswith("cuda"):
        return flush_caches()
    import torch

    properties: Any = torch.cuda.get_device_properties(device)
    return cold_cache(int(getattr(properties, "L2_cache_size", 1 << 26)))


def flush_caches() -> Callable[[], object]:
    """A call that fills the CPU's caches with something else, by reading twice as much as the last level holds.

    One and a half times leaves a third of a small tensor behind; four times takes twice as long for little more.
    """
    import torch

    last = max((cache.instance_bytes * cache.instance_count for cache in data_caches()), default=32 << 20)
    return torch.zeros(2 * last // 4).sum


class Device(Protocol):
    """The methods of a device that timing without waiting calls: events on its current stream, read when it has passed
    them.
    """

    def event(self) -> Any:
        """A new event: ``record()`` queues it, ``query()`` returns whether the device has passed it,
        ``elapsed_time(later)`` returns milliseconds.
        """

    def is_capturing(self) -> bool:
        """Whether the current stream is being captured into a graph, where events have no time."""

    def synchronize(self) -> None:
        """Wait until the device has done all that is queued."""

    def memory(self) -> Memory:
        """Memory of this process on the device, without waiting."""


class CudaDevice:
    """The current CUDA device."""

    def event(self) -> Any:
        """A CUDA event with a time."""
        import torch

        make: Any = torch.cuda.Event
        return make(enable_timing=True)

    def is_capturing(self) -> bool:
        """Whether a CUDA graph is being captured on the current stream."""
        import torch

        return bool(torch.cuda.is_current_stream_capturing())

    def synchronize(self) -> None:
        """``torch.cuda.synchronize``."""
        import torch

        torch.cuda.synchronize()

    def memory(self) -> Memory:
        """Of torch's allocator."""
        return cuda_memory()


def cold_cache(l2_bytes: int) -> Callable[[], object]:
    """A call that fills the device's L2 with something else, by reading: lines that it wrote would be flushed while the
    call is timed.
    """
    import torch

    return torch.zeros(max(4 * l2_bytes, 1 << 28) // 4, device="cuda").sum


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
