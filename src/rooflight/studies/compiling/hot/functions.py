"""FunctionFinder: finds loops of plain functions by looking now and then at where a thread is; its ops cost no more.

A frame that stays while those that it calls are new is a loop, and what it calls is called in each iteration.
"""

from __future__ import annotations

import gc
import inspect
import sys
import threading
import types
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import torch

from rooflight.studies.compiling import workloads
from rooflight.studies.compiling.hot.plan import FunctionEntry
from rooflight.studies.compiling.hot.state import TRAINS, Seen

_EVERY_S: Final = 0.01
_LATER_S: Final = 0.1
_LOOKS: Final = 2000
"""After so many looks at a thread, it is looked at every ``_LATER_S``."""
ENOUGH: Final = 20
"""So many iterations that were seen make a loop: 0.2 s of it."""
_LATER: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_NOT_ITS_OWN: Final = ("site-packages", str(Path(torch.__file__).parent), str(Path(__file__).parents[3]), "<frozen")
_STANDARD: Final = str(Path(threading.__file__).parent)
_number = count()


class _Mark:
    """What tells a frame that was seen before from a new one at its address: the frame holds it. No frame is held."""

    def __init__(self, place: int) -> None:
        self.place = place

    def __call__(self, *_: object) -> None:
        """Traces nothing, should a debugger look at it."""


@dataclass(slots=True)
class Found:
    """A loop in the code ``loop``: at which line it was last seen, how often, and the last new call in it."""

    loop: types.CodeType
    called: types.CodeType | None
    line: int = 0
    seen: int = 0
    with_modules: bool = False
    of_torch: bool = False
    loop_seen: Seen | None = None
    why: str = ""

    def note(self, share: float) -> str:
        """Where it is and what share of the time its function takes; why it is not compiled."""
        where = f"{Path(self.loop.co_filename).name}:{self.line}"
        more = f"; it is not compiled: {self.why}" if self.why else "; @rl.hot above the function says so for good"
        return f"a loop at {where}, in code that takes about {share:.0%} of the time{more}"


class FunctionFinder:
    """Looks at the thread that made it, from another one. ``attach`` is called with the entry of a function that a loop
    calls in each iteration, and with what the report says of it: its calls are to be observed.
    """

    def __init__(self, attach: Callable[[FunctionEntry], Seen | None], report: Callable[[Seen], object]) -> None:
        self._attach, self._report = attach, report
        self._thread = threading.get_ident()
        self._stop = threading.Event()
        self._found: dict[Any, Found] = {}
        self._seen_through: set[Any] = set()  # functions that are not compiled, but may call one that can be
        self._looks = 0
        self._began = self._last = perf_counter()
        self._spent_s: Counter[types.CodeType] = Counter()
        self._looking = threading.Thread(target=self._run, daemon=True, name="rooflight.hot")
        self._looking.start()

    def stop(self) -> None:
        """Look no more: none is attached after this."""
        self._stop.set()
        self._looking.join()
        self.describe()

    def describe(self) -> None:
        """Bring the notes of the report up to date."""
        for found in list(self._found.values()):
            if found.loop_seen is not None:
                found.loop_seen.note = found.note(self._spent_s[found.loop] / (self._last - self._began))

    def _run(self) -> None:
        while not self._stop.wait(_EVERY_S if self._looks < _LOOKS else _LATER_S):
            frame = sys._current_frames().get(self._thread)
            if frame is None:
                return
            self.look(frame)
            del frame

    def look(self, frame: types.FrameType | None) -> None:
        """Note where the thread is: in which frame it stayed since the last look, and what that calls now."""
        self._looks += 1
        self._spend(frame)
        called, within, modules, held = None, None, False, frame
        while frame is not None and not isinstance(frame.f_trace, _Mark):
            if frame.f_trace is None:
                frame.f_trace = _Mark(frame.f_lasti)
            modules |= frame.f_code.co_name == "_call_impl"
            called, within, frame = frame, called, frame.f_back
        if frame is None:
            return
        if called is not None and _place(called.f_code) in self._seen_through:
            called = within
        mark: Any = frame.f_trace
        back, mark.place = frame is held and frame.f_lasti < mark.place, frame.f_lasti
        if _is_its_own(frame.f_code) and (back or (called is not None and _is_its_own(called.f_code))):
            self._note(frame, called, modules=modules)

    def _spend(self, frame: types.FrameType | None) -> None:
        now, inside = perf_counter(), set[types.CodeType]()
        while frame is not None:
            inside.add(frame.f_code)
            frame = frame.f_back
        for code in inside:
            self._spent_s[code] += now - self._last  # type: ignore[assignment]
        self._last = now

    def _note(self, frame: types.FrameType, callee: types.FrameType | None, *, modules: bool) -> None:
        called = callee and callee.f_code
        key = frame.f_code, _place(called)
        found = self._found.get(key)
        if found is None:
            of_torch = _has_torch(frame.f_globals) or (
                callee is not None and (_has_torch(callee.f_globals) or _has_torch(callee.f_locals))
            )
            found = self._found[key] = Found(frame.f_code, called, of_torch=of_torch)
        found.seen += 1
        found.line = frame.f_lineno
        found.with_modules |= modules
        kinds = list(found.loop_seen.kinds.values()) if found.loop_seen is not None else []
        if kinds and all(kind.reason == TRAINS for kind in kinds):
            self._seen_through.add(_place(called))
        if found.seen >= ENOUGH and found.loop_seen is None and found.of_torch and not found.with_modules:
            place = _place(found.loop)
            inner = any(_place(each.called) == place and each.seen > 1 for each in self._found.values())
            if not inner:
                self._met(found)

    def _met(self, found: Found) -> None:
        entry, found.why = _entry(found.called)
        if entry is not None:
            found.loop_seen = self._attach(entry)
        else:
            found.loop_seen = Seen((found.called or found.loop).co_qualname.replace("<locals>.", ""))
            self._report(found.loop_seen)


def _place(code: types.CodeType | None) -> Any:
    """What a function's code has in common with the code that stands in for it."""
    return code and (code.co_filename, code.co_firstlineno, code.co_name)


def _is_its_own(code: types.CodeType) -> bool:
    if code.co_filename == workloads.__file__:
        return True
    return not code.co_filename.startswith(_STANDARD) and not any(each in code.co_filename for each in _NOT_ITS_OWN)


def _has_torch(names: dict[str, Any]) -> bool:
    """Whether any is torch, something of torch's, or a list or tuple that begins with a tensor."""
    values = list(names.values())
    values += [value[0] for value in values if type(value) in (list, tuple) and value]
    return any(value is torch or str(getattr(value, "__module__", type(value).__module__)).startswith("torch")
               for value in values)  # fmt: skip


def _entry(code: types.CodeType | None) -> tuple[CalledEntry | None, str]:
    if code is None:
        return None, "its body stands in the loop itself: put it into a function, with @rl.hot above"
    if code.co_flags & _LATER:
        return None, "it calls a generator or coroutine: put @rl.hot above a function that this calls"
    functions = [each for each in gc.get_referrers(code) if isinstance(each, types.FunctionType)]
    if len(functions) != 1:
        return None, f"{len(functions)} functions have its code: put @rl.hot above the one to compile"
    return CalledEntry(functions[0]), ""


class CalledEntry(FunctionEntry):
    """A function whose code is exchanged, so that all who hold it call another one, until it is given back."""

    def __init__(self, function: types.FunctionType) -> None:
        self._code, self._name = function.__code__, f"__rooflight_hot_{next(_number)}"
        eager = types.FunctionType(
            self._code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        eager.__kwdefaults__, eager.__qualname__ = function.__kwdefaults__, function.__qualname__
        super().__init__(eager)
        self._function, self._forward = function, self.bind
        self.bind = self._exchange

    def _exchange(self, call: Callable[..., Any]) -> None:
        self._forward(call)
        if call is self.eager:
            self._function.__code__ = self._code
            self._function.__globals__.pop(self._name, None)
            return
        self._function.__globals__[self._name] = self.call
        self._function.__code__ = _stand_in.__code__.replace(
            co_names=(self._name,),
            co_freevars=self._code.co_freevars,
            co_name=self._code.co_name,
            co_filename=self._code.co_filename,
            co_firstlineno=self._code.co_firstlineno,
        )


def _stand_in(*args: Any, **kwargs: Any) -> Any:
    return __call(*args, **kwargs)  # type: ignore[name-defined]  # noqa: F821
