"""A device that is as far as a test says, with events on its own clock; it counts what is asked of it."""

from __future__ import annotations

from rooflight.hardware.machine.memory import Memory


class FakeEvent:
    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self._place = 0
        self._time_ns = 0

    def record(self) -> None:
        """Queued behind the work so far: its time is that at which the device will have done it."""
        self._device.recorded += 1
        self._place = self._device.recorded
        self._time_ns = self._device.queued_ns

    def query(self) -> bool:
        return self._place <= self._device.passed

    def elapsed_time(self, later: FakeEvent) -> float:
        assert self.query()
        assert later.query()
        return (later._time_ns - self._time_ns) / 1e6


class FakeDevice:
    """``work`` queues nanoseconds of work; ``finish`` lets the device do all that is queued."""

    def __init__(self) -> None:
        self.queued_ns = 0
        self.recorded = self.passed = 0
        self.events = self.syncs = 0
        self.capturing = False
        self.memory_now = Memory(0, 0)

    def event(self) -> FakeEvent:
        self.events += 1
        return FakeEvent(self)

    def is_capturing(self) -> bool:
        return self.capturing

    def synchronize(self) -> None:
        self.syncs += 1
        self.finish()

    def memory(self) -> Memory:
        return self.memory_now

    def work(self, nanoseconds: int) -> None:
        self.queued_ns += nanoseconds

    def finish(self) -> None:
        self.passed = self.recorded
