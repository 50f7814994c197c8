"""Ticks: a thread is looked at every so often, and disturbed little.

Two timers of the kernel interrupt this thread alone, with a signal that ends no program if nobody handles it: one by
the wall, which says where the thread is, one by its CPU clock, which says where it works. What a line has of the first
and not of the second it slept, however short its turns are. Where there are no such timers, or the signal is taken, a
thread looks instead; it sees a thread that runs Python a little late, and then where it lets the interpreter go.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf
from types import FrameType
from typing import Any, Final

_CLOCKS: Final = (1, 3)  # CLOCK_MONOTONIC, CLOCK_THREAD_CPUTIME_ID
_OF_CPU: Final = 1  # the second of these
_TO_THREAD: Final = 4  # SIGEV_THREAD_ID of Linux
_SIGNAL: Final = getattr(signal, "SIGURG", 0)  # of Unix alone
_SWITCH_S: Final = 2e-4  # a thread that runs Python gives the lock up so often, so that one that looks is on time
_MOST_S: Final = 0.04  # short programs are seen, too
_DEARER: Final = 1.1
_GOLDEN: Final = 0.6180339887  # its multiples spread evenly between whole numbers


class _SignalEvent(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread", ctypes.c_int),
        ("rest", ctypes.c_byte * 44),
    )


class Ticks:
    """From ``start`` to ``stop``, every ``interval_s`` in the mean, calls ``take`` with what ``see`` makes of the frame
    of the thread that made this, and with the seconds that it stands for: of the wall, running, and waiting for a CPU;
    less often where that takes more than a ``share`` of the time. ``hurry``: a thread that has to look instead makes
    the other give way more often.
    """

    def __init__(
        self,
        see: Callable[[FrameType], Any],
        take: Callable[[Any, float, float, float], None],
        interval_s: float,
        *,
        share: float = inf,
        hurry: bool = False,
    ) -> None:
        self._see, self._take, self._interval_s, self._share, self._hurry = see, take, interval_s, share, hurry
        self._cost_s = 0.0
        self.thread, self._schedule = threading.get_ident(), -1
        self._clock: int | None = None
        self._libc: Any = None
        self._timers = (ctypes.c_void_p(), ctypes.c_void_p())
        self._due, self._turn = [0.0, 0.0], 0.0
        self._last, self._waited = [0.0, 0.0], 0.0
        with suppress(AttributeError):  # macOS has no clock of a thread: it then never sleeps
            self._clock = time.pthread_getcpuclockid(self.thread)
        self._looks = False
        self._stop: threading.Event | None = None
        self._instead: threading.Thread | None = None
        self._switch_s = sys.getswitchinterval()

    def start(self) -> None:
        """Look from here on, in whatever way this system allows."""
        with suppress(OSError):  # Linux alone has it
            self._schedule = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        self._last, self._waited = [time.perf_counter(), self._ran_s()], self._waited_s()
        try:
            self._start_timers()
        except (AttributeError, OSError, ValueError):  # not Linux, or not the main thread
            self._stop = threading.Event()
            looking = self._watch, (self._stop,)
            self._instead = threading.Thread(target=looking[0], args=looking[1], name="rooflight lines", daemon=True)
            self._switch_s = sys.getswitchinterval()
            if self._hurry:
                sys.setswitchinterval(_SWITCH_S)
            self._instead.start()

    def stop(self) -> None:
        """Look no more; the program's own handler is back."""
        if self._stop is not None and self._instead is not None:
            self._stop.set()
            self._instead.join(_MOST_S)  # it takes no sample while samples are read
            if self._hurry:
                sys.setswitchinterval(self._switch_s)
            self._stop = None
        if self._libc is not None:
            for timer in self._timers:
                self._libc.timer_delete(timer)
            self._libc = None
            with suppress(ValueError, TypeError):
                if signal.getsignal(_SIGNAL) == self._tick:
                    signal.signal(_SIGNAL, signal.SIG_DFL)
        schedule, self._schedule = self._schedule, -1
        if schedule >= 0:
            with suppress(OSError):
                os.close(schedule)

    def slower(self) -> None:
        """Look half as often."""
        self._interval_s *= 2

    # -- by timers

    def _start_timers(self) -> None:
        if not _SIGNAL or signal.getsignal(_SIGNAL) is not signal.SIG_DFL:
            raise ValueError("the signal is taken")
        libc = ctypes.CDLL(None, use_errno=True)
        event = _SignalEvent(signal=_SIGNAL, notify=_TO_THREAD, thread=threading.get_native_id())
        signal.signal(_SIGNAL, self._tick)
        signal.siginterrupt(_SIGNAL, False)  # calls of libraries go on by themselves
        for clock, timer in zip(_CLOCKS, self._timers, strict=True):
            if libc.timer_create(clock, ctypes.byref(event), ctypes.byref(timer)):
                signal.signal(_SIGNAL, signal.SIG_DFL)
                raise OSError(ctypes.get_errno(), "no timer")
        self._libc = libc
        for number in range(len(_CLOCKS)):
            self._set(number)

    def _set(self, number: int) -> None:
        """The next tick of a timer: never in step with the program's own turns."""
        self._turn = (self._turn + _GOLDEN) % 1
        affordable_s = min(len(_CLOCKS) * self._cost_s / self._share, _MOST_S)
        self._due[number] = max(self._interval_s, affordable_s) * (0.5 + self._turn)
        seconds, part = divmod(self._due[number], 1)
        every = (ctypes.c_long * 4)(*(int(seconds), int(part * 1e9)) * 2)  # so often, where a look fails
        self._libc.timer_settime(self._timers[number], 0, ctypes.byref(every), None)

    def _tick(self, _: int, frame: FrameType | None) -> None:
        if frame is None or self._libc is None or self._looks:  # a look frees objects, whose own code is interrupted
            return
        self._looks = True
        try:
            with suppress(RecursionError, MemoryError):  # the program's, near its limit: one sample less
                self._look(frame)
        finally:
            self._looks = False

    def _look(self, frame: FrameType) -> None:
        begin_s = self._ran_s()
        seen = self._see(frame)  # before a file is read, in which a thread that is looked at goes on
        stands_for = [0.0, 0.0, 0.0]
        for number, clock_s in enumerate((time.perf_counter(), self._ran_s())):
            took_s = clock_s - self._last[number]
            if took_s >= self._due[number]:
                stands_for[number], self._last[number] = took_s, clock_s
                if number == _OF_CPU:
                    waited_s = self._waited_s()
                    stands_for[-1], self._waited = waited_s - self._waited, waited_s
                if self._libc is not None:
                    self._set(number)
        self._take(seen, *stands_for)
        # new code is looked up once: what costs more than the one before was no usual one
        self._cost_s = min(self._ran_s() - begin_s, _DEARER * self._cost_s or inf)

    def _ran_s(self) -> float:
        return time.clock_gettime(self._clock) if self._clock is not None else time.perf_counter()

    def _waited_s(self) -> float:
        """For how long the thread has waited for a CPU, which Linux alone tells."""
        with suppress(OSError, ValueError, IndexError):  # or the program has closed it, and has another file there
            return int(os.pread(self._schedule, 64, 0).split()[1]) * 1e-9
        return self._waited

    # -- by a thread

    def _watch(self, stop: threading.Event) -> None:
        while not stop.wait(self._interval_s):
            frame = sys._current_frames().get(self.thread)
            if frame is not None:
                self._look(frame)

    of_a_tick = (_tick, slower, _set, _look, _ran_s, _waited_s)
