"""Ctrl-C at a chosen moment, by the timer of this process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Alarm:
    """Raises KeyboardInterrupt in the main thread: once for each ``set``, never after ``off`` has returned."""

    def __init__(self) -> None:
        self.armed = False

    def ring(self, _number: int, _frame: FrameType | None) -> None:
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt

    def set(self, seconds: float) -> None:
        self.armed = True
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def off(self) -> None:
        """Call it where KeyboardInterrupt is caught: the alarm may still ring until it returns."""
        self.armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def alarm_clock() -> Iterator[Alarm]:
    """An alarm; the handler of before is back after the block."""
    alarm = Alarm()
    before = signal.signal(signal.SIGALRM, alarm.ring)
    try:
        yield alarm
    finally:
        try:
            alarm.off()
        finally:
            signal.signal(signal.SIGALRM, before)
