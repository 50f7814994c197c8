"""TimedCalls: opens timers around the calls of modules.

It stands where ``Module.compile`` puts compiled code (``_compiled_call_impl``), which torch calls instead of the
module: one function around the call, where a pair of hooks makes torch take its long way through all kinds of hooks and
costs several times as much. Dynamo passes it by, so that code it compiles stays whole. Copies of a module lack it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakSet, ref

from rooflight.sources.capture.time.buckets import Bucket

if TYPE_CHECKING:
    from torch import nn

_NAME: Final = "_compiled_call_impl"

Around = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class Measuring(Protocol):
    """What says whether timers are to be opened. ``caller`` is the label of the open call that is a caller."""

    measuring: bool
    caller: str | None


class Arounds(dict[str, Around]):
    """What calls something with ``timers[label]`` open, by label; each is made when it is first asked for. ``clear`` it
    when the timers are others.
    """

    def __init__(self, timers: Mapping[str, AbstractContextManager[object]]) -> None:
        super().__init__()
        self._timers = timers

    def __missing__(self, label: str) -> Around:
        timer = self._timers[label]
        found = self[label] = timer.around if isinstance(timer, Bucket) else partial(_within, timer)
        return found


class _Timed:
    """What is called in a module's place. ``below`` was there before, None where that was the module itself."""

    __slots__ = ("__weakref__", "around", "below", "inner", "label")

    def __init__(self, module: nn.Module, label: str, around: Around | None = None) -> None:
        self.label = label
        self.around: Around | None = around
        self.put_over(module, vars(module).get(_NAME))

    def put_over(self, module: nn.Module, below: Callable[..., Any] | None) -> None:
        self.below = below
        self.inner: Callable[..., Any] = below or module._call_impl

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


class TimedCalls:
    """Calls a module by ``arounds[label]`` while ``of.measuring``. That is looked up once, and again after ``renew``.

    Several may be put around one module and be removed in any order. One is passed by once the module was compiled in
    place after it.
    """

    def __init__(self, of: Measuring, arounds: Mapping[str, Around]) -> None:
        class Timed(_Timed):
            # one function for all modules: what differs between them is one object, since each touch of memory counts
            __slots__ = ()

            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                if not of.measuring:
                    return self.inner(*args, **kwargs)
                around = self.around
                if around is None:
                    around = self.around = arounds[self.label]
                return around(self.inner, args, kwargs)

        class Caller(Timed):
            __slots__ = ()

            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                if not of.measuring:
                    return self.inner(*args, **kwargs)
                around = self.around
                if around is None:
                    around = self.around = arounds[self.label]
                before, of.caller = of.caller, self.label
                try:
                    return around(self.inner, args, kwargs)
                finally:
                    of.caller = before

        self._kind, self._caller = Timed, Caller
        self._made: WeakSet[_Timed] = WeakSet()

    def around(self, module: nn.Module, label: str, *, caller: bool = False) -> TimedCall:
        """Time a module's calls from here on. During those of a ``caller``, ``of.caller`` is its label."""
        timed = (self._caller if caller else self._kind)(module, label)
        vars(module)[_NAME] = timed
        self._made.add(timed)
        return TimedCall(module, timed)

    def renew(self) -> None:
        """``arounds`` has others from here on."""
        for timed in self._made:
            timed.around = None


def _within(
    timer: AbstractContextManager[object], call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    with timer:
        return call(*args, **kwargs)


class TimedCall:
    """A timer around the calls of one module. The module is freed with it when nobody else uses it."""

    def __init__(self, module: nn.Module, timed: _Timed) -> None:
        self._module, self._timed = ref(module), ref(timed)

    def remove(self) -> None:
        """Leave the module as if this had never been there."""
        module, timed = self._module(), self._timed()
        if module is None or timed is None:
            return
        above: _Timed | None = None
        call: Callable[..., Any] | None = vars(module).get(_NAME)
        while isinstance(call, _Timed) and call is not timed:
            above, call = call, call.below
        if not isinstance(call, _Timed):
            return
        if above is not None:
            above.put_over(module, timed.below)
        elif timed.below is not None:
            vars(module)[_NAME] = timed.below
        else:
            del vars(module)[_NAME]


class _Watched(_Timed):
    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        assert self.around is not None
        return self.around(self.inner, args, kwargs)


def watch_calls(module: nn.Module, around: Around) -> TimedCall:
    """Have ``around(call, args, kwargs)`` call a module by ``call``, and return its output, until it is removed."""
    watched = _Watched(module, "", around)
    vars(module)[_NAME] = watched
    return TimedCall(module, watched)


def compiled_code(module: Any) -> Callable[..., Any] | None:
    """What ``Module.compile`` put into a module, with no timer around it; None if it was not compiled in place."""
    call = getattr(module, _NAME, None)
    while isinstance(call, _Timed):
        call = call.below
    return call
