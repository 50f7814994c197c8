"""A limit on the time of a call that may hang, such as a compilation."""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

_Result = TypeVar("_Result")


class TookTooLong(BaseException):
    """Raised in a call whose time is up. No Exception: libraries that go on after one are to end, too."""


class _Last(BaseException):
    """Takes the place of an exception that is still on its way."""


def within(limit_s: float, call: Callable[[], _Result]) -> _Result:
    """What ``call`` returns. Raises TimeoutError if it takes longer than ``limit_s``.

    In the main thread a timer's signal interrupts it, waiting for another process included; the handler and timer of a
    program that has its own are left alone. In other threads, and beside such a program, it ends at the next Python
    instruction after its time.
    """
    in_main = threading.current_thread() is threading.main_thread()
    try:
        if in_main and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
            return _with_signal(limit_s, call)
        return _with_exception(limit_s, call)
    except TookTooLong:
        raise TimeoutError(f"took longer than {limit_s:g} s") from None


def _with_signal(limit_s: float, call: Callable[[], _Result]) -> _Result:
    done = False

    def ring(_number: int, _frame: FrameType | None) -> None:
        if not done:
            raise TookTooLong

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s, limit_s)  # again, in case a destructor swallowed the first
    try:
        try:
            return call()
        finally:
            done = True  # the timer may ring before this line, too
    finally:
        done = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _with_exception(limit_s: float, call: Callable[[], _Result]) -> _Result:
    thread, lock = ctypes.c_ulong(threading.get_ident()), threading.Lock()
    done = rung = False

    def ring() -> None:
        nonlocal rung
        with lock:
            if not done:
                rung = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(TookTooLong))

    timer = threading.Timer(limit_s, ring)
    timer.daemon = True
    timer.start()
    try:
        return call()
    finally:
        with lock:
            done = True
        timer.cancel()
        if rung:
            _take_what_is_on_its_way(thread)


def _take_what_is_on_its_way(thread: ctypes.c_ulong) -> None:
    """Leave no exception under way to this thread, and none announced.

    To set none instead would withdraw the exception but leave it announced for ever: CPython 3.11 then never leaves the
    first instruction of a function that a profiler watches.
    """
    try:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(_Last))
        while True:
            pass
    except _Last:
        return
