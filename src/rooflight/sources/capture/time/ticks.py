"""Ticks: a thread is looked at every so often, and disturbed little.

A timer of the kernel interrupts this thread alone, with a signal that ends no program if nobody handles it. Where there
is no such timer, or the signal is taken, a thread looks instead; it sees a thread that runs Python a little late, and
then where it lets the interpreter go.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Final

_MONOTONIC, _TO_THREAD = 1, 4  # CLOCK_MONOTONIC, SIGEV_THREAD_ID of Linux
_SIGNAL: Final = getattr(signal, "SIGURG", 0)  # of Unix alone
_SWITCH_S: Final = 2e-4  # a thread that runs Python gives the lock up so often, so that one that looks is on time


class _SignalEvent(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread", ctypes.c_int),
        ("rest", ctypes.c_byte * 44),
    )


class Ticks:
    """Calls ``look`` with the frame of the thread that makes it, every ``interval_s`` from ``start`` to ``stop``.
    ``hurry``: a thread that has to look instead makes the other give way more often.
    """

    def __init__(self, look: Callable[[FrameType], None], interval_s: float, *, hurry: bool = False) -> None:
        self._look, self._interval_s, self._hurry = look, interval_s, hurry
        self._libc: Any = None
        self._timer = ctypes.c_void_p()
        self._stop: threading.Event | None = None
        self._instead: threading.Thread | None = None
        self._switch_s = sys.getswitchinterval()
        self.thread = threading.get_ident()

    def start(self) -> None:
        """Look from here on, in whatever way this system allows."""
        try:
            self._start_timer()
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
            if self._hurry:
                self._instead.join()
                sys.setswitchinterval(self._switch_s)
            self._stop = None
        if self._libc is not None:
            self._libc.timer_delete(self._timer)
            self._libc = None
            with suppress(ValueError, TypeError):
                if signal.getsignal(_SIGNAL) == self._tick:
                    signal.signal(_SIGNAL, signal.SIG_DFL)

    def slower(self) -> None:
        """Look half as often."""
        self._interval_s *= 2
        self._set()

    def _start_timer(self) -> None:
        if not _SIGNAL or signal.getsignal(_SIGNAL) is not signal.SIG_DFL:
            raise ValueError("the signal is taken")
        libc = ctypes.CDLL(None, use_errno=True)
        event = _SignalEvent(signal=_SIGNAL, notify=_TO_THREAD, thread=threading.get_native_id())
        signal.signal(_SIGNAL, self._tick)
        signal.siginterrupt(_SIGNAL, False)  # calls of libraries go on by themselves
        if libc.timer_create(_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer)):
            signal.signal(_SIGNAL, signal.SIG_DFL)
            raise OSError(ctypes.get_errno(), "no timer")
        self._libc = libc
        self._set()

    def _set(self) -> None:
        if self._libc is not None:
            seconds, part = divmod(self._interval_s, 1)
            every = (ctypes.c_long * 4)(*(int(seconds), int(part * 1e9)) * 2)
            self._libc.timer_settime(self._timer, 0, ctypes.byref(every), None)

    def _tick(self, _: int, frame: FrameType | None) -> None:
        if frame is not None:
            with suppress(RecursionError, MemoryError):  # the program's, near its limit: one sample less
                self._look(frame)

    def _watch(self, stop: threading.Event) -> None:
        while not stop.wait(self._interval_s):
            frame = sys._current_frames().get(self.thread)
            if frame is not None:
                self._look(frame)

    of_a_tick = (_tick, slower, _set)
