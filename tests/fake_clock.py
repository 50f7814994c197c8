"""Time that passes only when a test says so."""

from collections.abc import Callable


class FakeClock:
    """A clock for ``rooflight.hardware.machine.timing``: ``advance`` moves it, and each timed call may cost a set time.

    Whole nanoseconds, so that assertions are exact.
    """

    def __init__(self, *, call_s: float = 0.0) -> None:
        self.time_ns = 0
        self.call_s = call_s
        self.calls = 0

    def now_ns(self) -> int:
        return self.time_ns

    def advance(self, seconds: float) -> None:
        self.time_ns += round(seconds * 1e9)

    def time_s(self, run: Callable[[], object]) -> float:
        start_ns = self.time_ns
        run()
        self.calls += 1
        self.advance(self.call_s)
        return (self.time_ns - start_ns) / 1e9
