"""TimedCalls: opens timers around the calls of modules.

It stands where ``Module.compile`` puts compiled code (``_compiled_call_impl``), which torch calls instead of the
module: one function around the call, where a pair of hooks makes torch take its long way through all kinds of hooks and
costs several times as much. Dynamo passes it by, so that code it compiles stays whole. Copies of a module lack it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import ref

if TYPE_CHECKING:
    from torch import nn

_NAME: Final = "_compiled_call_impl"

Around = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class Measuring(Protocol):
    """What says whether timers are to be opened."""

    measuring: bool


class TimedCalls:
    """Opens ``timers[label]`` around each call of a module while ``of.measuring``.

    Several may be put around one module and be removed in any order. One is passed by once the module was compiled in
    place after it.
    """

    def __init__(self, of: Measuring, timers: Mapping[str, AbstractContextManager[object]]) -> None:
        class Timed(_Timed):
            # one function for all modules: what differs between them is one object, since each touch of memory counts
            __slots__ = ()

            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                if not of.measuring:
                    return self.inner(*args, **kwargs)
                with timers[self.label]:
                    return self.inner(*args, **kwargs)

        self._kind = Timed

    def around(self, module: nn.Module, label: str) -> TimedCall:
        """Time a module's calls from here on."""
        timed = self._kind(module, label)
        vars(module)[_NAME] = timed
        return TimedCall(module, timed)


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


class _Timed:
    """What is called in a module's place. ``below`` was there before, None where that was the module itself."""

    __slots__ = ("__weakref__", "below", "inner", "label")

    def __init__(self, module: nn.Module, label: str) -> None:
        self.label = label
        self.put_over(module, vars(module).get(_NAME))

    def put_over(self, module: nn.Module, below: Callable[..., Any] | None) -> None:
        self.below = below
        self.inner: Callable[..., Any] = below or module._call_impl

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


class _Watched(_Timed):
    __slots__ = ("around",)

    def __init__(self, module: nn.Module, around: Around) -> None:
        super().__init__(module, "")
        self.around = around

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.around(self.inner, args, kwargs)


def watch_calls(module: nn.Module, around: Around) -> TimedCall:
    """Have ``around(call, args, kwargs)`` call a module by ``call``, and return its output, until it is removed."""
    watched = _Watched(module, around)
    vars(module)[_NAME] = watched
    return TimedCall(module, watched)


def compiled_code(module: Any) -> Callable[..., Any] | None:
    """What ``Module.compile`` put into a module, with no timer around it; None if it was not compiled in place."""
    call = getattr(module, _NAME, None)
    while isinstance(call, _Timed):
        call = call.below
    return call
