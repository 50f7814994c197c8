"""Samples the main thread of a script all along its run: at which line it is, and whether it works or sleeps.

A timer of the kernel interrupts this thread alone, with a signal that ends no program if nobody handles it. Where there
is no such timer, a thread looks instead. A sample stands for the time since the one before: while a library computes,
signals wait, and the line that called it has them all when it goes on.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from rooflight.records.timeline import Between, HostTime, Within
from rooflight.sources.capture import own_code
from rooflight.sources.capture.time.host_lines import HostLines, Key, longest_lines

if TYPE_CHECKING:
    from rooflight.records.session import Int64

INTERVAL_S: Final = 1e-2
_MOST: Final = 1 << 18  # samples that are kept: 8 MB; then every second is dropped, and half as many follow
_WIDTH: Final = 4
_FEW: Final = 10
_MONOTONIC, _TO_THREAD = 1, 4  # CLOCK_MONOTONIC, SIGEV_THREAD_ID of Linux
_SIGNAL: Final = getattr(signal, "SIGURG", 0)  # of Unix alone


class _SignalEvent(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread", ctypes.c_int),
        ("rest", ctypes.c_byte * 44),
    )


class Sampler:
    """Samples the thread that makes it, from ``start`` to ``stop``. ``evaluates``: whether a model is evaluated now."""

    def __init__(self, evaluates: Callable[[], bool], interval_s: float = INTERVAL_S) -> None:
        self._evaluates, self._interval_s = evaluates, interval_s
        self._stacks = HostLines()
        self._numbers: dict[tuple[Key, bool], int] = {}
        self._samples = array("q")
        self._libc: Any = None
        self._timer = ctypes.c_void_p()
        self._stop: threading.Event | None = None
        self.thread = threading.get_ident()

    # -- while the script runs

    def start(self) -> None:
        """Sample from here on, in whatever way this system allows."""
        self._sample(None)
        try:
            self._start_timer()
        except (AttributeError, OSError, ValueError):  # not Linux, or not the main thread
            self._stop = threading.Event()
            threading.Thread(target=self._look, args=(self._stop,), name="rooflight lines", daemon=True).start()

    def stop(self) -> None:
        """Sample no more; the script's own handler is back."""
        if self._stop is not None:
            self._stop.set()
        self._stacks.close()
        if self._libc is not None:
            self._libc.timer_delete(self._timer)
            self._libc = None
            with suppress(ValueError, TypeError):
                if signal.getsignal(_SIGNAL) == self._tick:
                    signal.signal(_SIGNAL, signal.SIG_DFL)

    def skip_compiling(self) -> None:
        """Tell torch.compile, once torch is there, that it is not to compile what a signal runs."""
        with suppress(ImportError, AttributeError):
            frames: Any = import_module("torch._C._dynamo.eval_frame")
            skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
            ours = Sampler._tick, Sampler._sample, Sampler._thin, Sampler._set, *HostLines.of_a_sample
            for function in (*ours, own_code.is_users, self._evaluates):
                frames.set_code_exec_strategy(function.__code__, skip)

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
            with suppress(RecursionError, MemoryError):  # the script's, near its limit: one sample less
                self._sample(frame)

    def _look(self, stop: threading.Event) -> None:
        while not stop.wait(self._interval_s):
            frame = sys._current_frames().get(self.thread)
            if frame is not None:
                self._sample(frame)

    def _sample(self, frame: FrameType | None) -> None:
        key = (None, 0, Within.ITSELF) if frame is None else self._stacks.key(frame)
        number = self._numbers.setdefault((key, self._evaluates()), len(self._numbers))
        ran_s, waited_s = self._stacks.clocks()
        self._samples.extend((time.perf_counter_ns(), number, int(ran_s * 1e9), int(waited_s * 1e9)))
        if len(self._samples) >= _WIDTH * _MOST:
            self._thin()

    def _thin(self) -> None:
        kept = array("q")
        for place in range(0, len(self._samples), 2 * _WIDTH):
            kept.extend(self._samples[place : place + _WIDTH])
        self._samples = kept
        self._interval_s *= 2
        self._set()

    # -- afterwards

    def within(self, begins: Int64, ends: Int64, *, evaluating: bool = False) -> HostTime | None:
        """What the thread did in such stretches of time (ns, in order), in the mean of one; None of few samples. That
        of evaluations is left out, or is all that is looked at.
        """
        import numpy as np  # not before the script says how many threads it may have

        samples = np.array(self._samples, dtype=np.int64).reshape(-1, _WIDTH)
        at, number = samples[1:, 0], samples[1:, 1]
        took, ran, waited = np.diff(samples[:, 0]), np.diff(samples[:, 2]), np.diff(samples[:, 3])
        stretch = np.searchsorted(begins, at, "right") - 1
        inside = (stretch >= 0) & (at <= ends[stretch]) if len(ends) else np.zeros(len(at), dtype=np.bool_)
        keys = list(self._numbers)
        inside &= np.array([mode == evaluating for _, mode in keys], dtype=np.bool_)[number]
        if np.count_nonzero(inside) < _FEW:
            return None
        sums = [
            np.bincount(number[inside], each[inside] * 1e-9 / len(begins), len(keys))
            for each in (took, np.maximum(took - ran - waited, 0), ran)
        ]
        seconds, asleep_s, cpu_s = sums
        found = Counter[Key]()
        asleep = Counter[Key]()
        for (key, _), its_s, its_asleep_s in zip(keys, seconds.tolist(), asleep_s.tolist(), strict=True):
            found[key] += its_s
            asleep[key] += its_asleep_s
        return HostTime(cpu_s=float(cpu_s.sum()), lines=longest_lines(found, asleep))

    @property
    def whole(self) -> tuple[Between, ...]:
        """The whole run."""
        import numpy as np

        first, last = self._samples[0], self._samples[-_WIDTH]
        host = self.within(np.array([first]), np.array([last]))
        return (Between(name="run", seconds=(last - first) * 1e-9, share=1.0, lines=host.lines),) if host else ()
