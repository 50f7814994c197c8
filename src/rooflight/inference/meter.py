"""Meter: the clocks of a profiler's steps and buckets, on a CPU and on CUDA.

On a CPU one clock times steps and the buckets of both domains. On CUDA, events on the device's stream time steps and
the buckets of the model, and the host's clock times the step once more, with the buckets of the engine. ``strict``
waits for the device before a step and at its end, and at the ends of the engine's buckets; without it nothing ever
waits, and a step is read some steps later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from rooflight.capture.bucket_log import BucketLog, Calls
from rooflight.capture.bucket_states import Bucket, DomainTimes
from rooflight.capture.marks import Found
from rooflight.capture.stamps import CudaStamps, HostStamps
from rooflight.inference.config import Domain
from rooflight.machine.clocks import Device
from rooflight.machine.memory import Memory, host_memory

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
    ``in_order`` as ``BucketLog`` has it.
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
        self._strict = strict and device is not None
        self.failed = False
        self.begin: Callable[[], Place] = self._begin_both
        self.end: Callable[[], Place] = self._end_both

        def failed(problem: str) -> None:
            self.failed = True
            on_problem(problem)

        if device is None:
            self.steps = self.engine = BucketLog(
                HostStamps(clock), tuple(Domain), on_problem, failed, in_order=in_order
            )
            self.begin, self.end = self.steps.begin, self.steps.end  # without a call in between
        else:
            wait = device.synchronize if strict else None
            self.steps = BucketLog(CudaStamps(device), (Domain.MODEL,), on_problem, failed, in_order=in_order)
            self.engine = BucketLog(HostStamps(clock), (Domain.ENGINE,), on_problem, failed, wait, in_order=in_order)

    @property
    def clock(self) -> str:
        """What measures the steps."""
        return HOST_CLOCK if self.device is None else DEVICE_CLOCK

    def memory(self) -> Memory | None:
        """Memory of this process where the steps run; None where it is not known."""
        return host_memory() if self.device is None else self.device.memory()

    @property
    def waits(self) -> bool:
        """Whether ``before`` waits for a device."""
        return self._strict

    def bucket(self, domain: Domain, name: str) -> Bucket:
        """The bucket of a domain that has a name."""
        return self._timer(domain).bucket(domain, name)

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
        if self._strict and self.device is not None:
            self.device.synchronize()
        return ended, self.engine.end()

    def stop(self) -> None:
        """Give the open step up."""
        self.steps.stop()
        self.engine.stop()

    def read(self, begun: Place, ended: Place) -> Reading | None:
        """A step (``BucketLog.read``); None while the device has not come that far. Each is read or lost."""
        if isinstance(begun, int) or isinstance(ended, int):
            assert isinstance(begun, int)
            assert isinstance(ended, int)
            of_step = self.steps.read(begun, ended)
            reading = None if of_step is None else Reading(of_step[0], None, of_step[1])
        else:
            of_step = self.steps.read(begun[0], ended[0])
            of_engine = None if of_step is None else self.engine.read(begun[1], ended[1])
            if of_step is None or of_engine is None:
                return None
            reading = Reading(of_step[0], of_engine[0], of_step[1] + of_engine[1])
        if reading is not None:
            self._forget(ended)
        return reading

    @property
    def notes(self) -> int:
        """Openings and closings of buckets in steps that were not read yet."""
        return max(self.steps.notes, self.engine.notes)

    def take_dropped(self) -> int:
        """Openings of buckets that were not timed since this was asked last, because the log was full."""
        return self.steps.take_dropped() + (self.engine.take_dropped() if self.engine is not self.steps else 0)

    def lose(self, ended: Place) -> None:
        """A step is not to be read."""
        self.steps.lose()
        self.engine.lose()
        self._forget(ended)

    def _forget(self, ended: Place) -> None:
        if isinstance(ended, int):
            self.steps.forget(ended)
        else:
            self.steps.forget(ended[0])
            self.engine.forget(ended[1])

    def before(self) -> None:
        """Wait for what was queued before a step, where that is asked for."""
        if self._strict and self.device is not None:
            self.device.synchronize()

    def drain(self) -> None:
        """Wait for the device, between runs."""
        if self.device is not None:
            self.device.synchronize()

    def _timer(self, domain: Domain) -> BucketLog:
        return self.steps if domain is Domain.MODEL else self.engine
