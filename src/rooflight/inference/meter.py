"""Meter: the clocks of a profiler's steps and buckets, on a CPU and on CUDA.

On a CPU one clock times steps and the buckets of both domains. On CUDA, events on the device's stream time steps and
the buckets of the model, and the host's clock times the step once more, with the buckets of the engine. ``strict``
waits for the device before a step and at its end, and at the ends of the engine's buckets; without it nothing ever
waits, and a step is read some steps later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from rooflight.capture.buckets import Bucket, BucketTimer, DomainTimes
from rooflight.capture.marks import CudaMarks, Found, HostMarks
from rooflight.inference.config import Domain
from rooflight.machine.clocks import Device

Reading = tuple[Callable[[], Found | None], Found | None]
"""What gives the step's nanoseconds by state, None while the device is not there yet; and the host's, on CUDA."""

HOST_CLOCK: Final = "host"
DEVICE_CLOCK: Final = "device events"


class Meter:
    """Times steps. ``device`` is None for a CPU; ``on_problem`` gets sentences (``BucketTimer``)."""

    def __init__(
        self, *, clock: Callable[[], int], device: Device | None, strict: bool, on_problem: Callable[[str], None]
    ) -> None:
        self.device = device
        self._strict = strict and device is not None
        if device is None:
            self.steps = self.engine = BucketTimer(HostMarks(clock), tuple(Domain), on_problem)
        else:
            wait = device.synchronize if strict else None
            self.steps = BucketTimer(CudaMarks(device), (Domain.MODEL,), on_problem)
            self.engine = BucketTimer(HostMarks(clock), (Domain.ENGINE,), on_problem, wait)

    @property
    def clock(self) -> str:
        """What measures the steps."""
        return HOST_CLOCK if self.device is None else DEVICE_CLOCK

    @property
    def failed(self) -> bool:
        """Whether a clock failed, so that times are not complete."""
        return self.steps.failed or self.engine.failed

    def bucket(self, domain: Domain, name: str) -> Bucket:
        """The bucket of a domain that has a name."""
        return self._timer(domain).bucket(domain, name)

    def in_bucket(self, name: str) -> bool:
        """Whether the bucket opened last of those open on the steps' clock has a name."""
        opened = self.steps.open
        return bool(opened) and opened[-1][0].name == name

    def calls(self) -> dict[tuple[str, str], int]:
        """How often each bucket was opened so far, by domain and name."""
        return {
            (domain, bucket.name): bucket.calls for domain in Domain for bucket in self._timer(domain).buckets(domain)
        }

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

    def begin(self) -> None:
        """A step begins."""
        if self.device is not None:
            self.engine.begin()
        self.steps.begin()

    def end(self) -> Reading:
        """The step ends."""
        read = self.steps.end()
        if self.device is None:
            return read, None
        if self._strict:
            self.device.synchronize()
        return read, self.engine.end()()

    def before(self) -> None:
        """Wait for what was queued before a step, where that is asked for."""
        if self._strict and self.device is not None:
            self.device.synchronize()

    def drain(self) -> None:
        """Wait for the device, between runs."""
        if self.device is not None:
            self.device.synchronize()

    def _timer(self, domain: Domain) -> BucketTimer:
        return self.steps if domain is Domain.MODEL else self.engine
