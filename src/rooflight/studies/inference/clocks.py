"""Meter: the clocks of a profiler's steps and buckets, on a CPU and on CUDA.

On a CPU one clock times steps and the buckets of both domains. On CUDA, events on the device's stream time steps and
the buckets of the model, and the host's clock times the step once more, with the buckets of the engine. ``strict``
waits for the device before a step and at its end, and at the ends of the engine's buckets; without it nothing ever
waits, and a step is read some steps later.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from rooflight.hardware.machine.memory import Memory, host_memory
from rooflight.hardware.machine.timing import CudaDevice, Device
from rooflight.sources.capture.time.bucket_log import BucketLog, Calls
from rooflight.sources.capture.time.buckets import Bucket, DomainTimes
from rooflight.sources.capture.time.marks import CudaStamps, Found, HostStamps
from rooflight.studies.inference.config import Domain

Place = int | tuple[int, int]
"""Where a step begins or ends in the log; on CUDA in that of the device's clock, and in that of the host's."""


class Reading(NamedTuple):
    """A step: nanoseconds by state on its own clock, on CUDA those on the host's; and the calls of its buckets."""

    found: Found
    on_host: Found | None
    calls: Calls


HOST_CLOCK: Final = "host"
DEVICE_CLOCK: Final = "device events"


class Meter:
    """Times steps. ``device`` is None for a CPU; ``on_problem`` gets sentences (``BucketLog``).

    ``begin`` and ``end`` are called at the ends of a step. ``failed``: a clock failed, so that times are not complete.
    ``in_order`` as ``BucketLog`` has it. ``steps`` logs the steps and the model's buckets, ``engine`` the engine's; on
    a CPU they are one.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], int],
        device: Device | None,
        strict: bool,
        on_problem: Callable[[str], None],
        in_order: bool = False,
    ) -> None:
        self.device = device
        self.waits = strict and device is not None
        """Whether ``before`` waits for a device."""
        self.failed = False
        self.begin: Callable[[], Place] = self._begin_both
        self.end: Callable[[], Place] = self._end_both

        def failed(problem: str) -> None:
            self.failed = True
            on_problem(problem)

        def log(stamps: Any, *domains: Domain, wait: Callable[[], None] | None = None) -> BucketLog:
            return BucketLog(stamps, domains, on_problem, failed, wait, in_order=in_order)

        if device is None:
            self.steps = self.engine = log(HostStamps(clock), *Domain)
            self.begin, self.end = self.steps.begin, self.steps.end  # without a call in between
        else:
            self.steps = log(CudaStamps(device), Domain.MODEL)
            self.engine = log(HostStamps(clock), Domain.ENGINE, wait=device.synchronize if strict else None)
        self._logs = (self.steps,) if device is None else (self.steps, self.engine)

    @property
    def clock(self) -> str:
        """What measures the steps."""
        return HOST_CLOCK if self.device is None else DEVICE_CLOCK

    def memory(self) -> Memory | None:
        """Memory of this process where the steps run; None where it is not known."""
        return host_memory() if self.device is None else self.device.memory()

    def bucket(self, domain: Domain, name: str) -> Bucket:
        """The bucket of a domain that has a name."""
        return (self.steps if domain is Domain.MODEL else self.engine).bucket(domain, name)

    def times(self, by_state: Sequence[int], host_by_state: Sequence[int]) -> dict[Domain, DomainTimes]:
        """The buckets of each domain, from nanoseconds by state on the steps' clock and, on CUDA, on the host's."""
        found = self.steps.times(by_state)
        if self.device is not None:
            found |= self.engine.times(host_by_state)
        return {Domain(domain): times for domain, times in found.items()}

    def divided(self, by_state: Sequence[int], host_by_state: Sequence[int], names: Sequence[str]) -> dict[str, int]:
        """Nanoseconds in each of the engine's buckets ``names``, with all that is open inside but the others of them;
        and under ``""`` all other time of the same steps.
        """
        sums = by_state if self.device is None else host_by_state
        found = self.engine.divided(sums, Domain.ENGINE, names)
        return found | {"": sum(sums) - sum(found.values())}

    def _begin_both(self) -> Place:
        on_host = self.engine.begin()
        return self.steps.begin(), on_host

    def _end_both(self) -> Place:
        ended = self.steps.end()
        self.before()
        return ended, self.engine.end()

    def before(self) -> None:
        """Wait for what was queued before a step, where that is asked for."""
        if self.waits:
            self.drain()

    def drain(self) -> None:
        """Wait for the device, between runs."""
        if self.device is not None:
            self.device.synchronize()

    def stop(self) -> None:
        """Give the open step up."""
        for log in self._logs:
            log.stop()

    def read(self, begun: Place, ended: Place) -> Reading | None:
        """A step (``BucketLog.read``); None while the device has not come that far. Each is read or lost."""
        if isinstance(begun, int) and isinstance(ended, int):  # most often, and the fastest
            of_step = self.steps.read(begun, ended)
            if of_step is None:
                return None
            self.steps.forget(ended)
            return Reading(of_step[0], None, of_step[1])
        found: list[Found] = []
        calls: Calls = ()
        for log, begin, end in zip(self._logs, _places(begun), _places(ended), strict=True):
            of_log = log.read(begin, end)
            if of_log is None:
                return None
            found.append(of_log[0])
            calls += of_log[1]
        self._forget(ended)
        return Reading(found[0], found[1] if len(found) > 1 else None, calls)

    def lose(self, ended: Place) -> None:
        """A step is not to be read."""
        for log in self._logs:
            log.lose()
        self._forget(ended)

    def _forget(self, ended: Place) -> None:
        for log, place in zip(self._logs, _places(ended), strict=True):
            log.forget(place)

    @property
    def notes(self) -> int:
        """Openings and closings of buckets in steps that were not read yet."""
        return max(log.notes for log in self._logs)

    def take_dropped(self) -> int:
        """Openings of buckets that were not timed since this was asked last, because the log was full."""
        return sum(log.take_dropped() for log in self._logs)


def _places(place: Place) -> tuple[int, ...]:
    return (place,) if isinstance(place, int) else place


def device_now(given: Device | str | None) -> Device | None:
    """The device whose events time steps, None where the host's clock does: as it is given, or the one that torch uses
    in this process.
    """
    if given is not None and not isinstance(given, str):
        return given
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return CudaDevice() if given == "cuda" or (given is None and cuda is not None and cuda.is_initialized()) else None
