"""TimedCall: opens a timer around the calls of one module.

It stands where ``Module.compile`` puts compiled code (``_compiled_call_impl``), which torch calls instead of the
module: one function around the call, where a pair of hooks makes torch take its long way through all kinds of hooks and
costs several times as much. Dynamo passes it by, so that code it compiles stays whole. Copies of a module lack it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeGuard
from weakref import ref

if TYPE_CHECKING:
    from torch import nn

_NAME: Final = "_compiled_call_impl"


class Measuring(Protocol):
    """What says whether timers are to be opened."""

    measuring: bool


class TimedCall:
    """Opens ``timers[label]`` around each call of ``module`` while ``of.measuring``, until ``remove()``. Several may be
    put around one module and be removed in any order. One is passed by once the module was compiled in place after it.
    """

    def __init__(
        self, module: nn.Module, of: Measuring, timers: Mapping[str, AbstractContextManager[object]], label: str
    ) -> None:
        below: Callable[..., Any] | None = vars(module).get(_NAME)
        inner = below or module._call_impl

        def call(*args: Any, **kwargs: Any) -> Any:
            if not of.measuring:
                return inner(*args, **kwargs)
            with timers[label]:
                return inner(*args, **kwargs)

        def put_over(other: Callable[..., Any] | None) -> None:
            nonlocal inner
            inner = other or module._call_impl
            vars(call)["below"] = other

        vars(call).update(timed_by=self, below=below, put_over=put_over)
        self._module = ref(module)  # which holds the rest: a module that nobody uses is freed with its timer
        vars(module)[_NAME] = call

    def remove(self) -> None:
        """Leave the module as if this had never been there."""
        module = self._module()
        above, call = None, None if module is None else vars(module).get(_NAME)
        while _is_timed(call) and call.timed_by is not self:
            above, call = call, call.below
        if module is None or not _is_timed(call):
            return
        if above is not None:
            above.put_over(call.below)
        elif call.below is not None:
            vars(module)[_NAME] = call.below
        else:
            del vars(module)[_NAME]


def compiled_code(module: Any) -> Callable[..., Any] | None:
    """What ``Module.compile`` put into a module, with no timer around it; None if it was not compiled in place."""
    call = getattr(module, _NAME, None)
    while _is_timed(call):
        call = call.below
    return call


def _is_timed(call: Any) -> TypeGuard[Any]:
    return isinstance(getattr(call, "timed_by", None), TimedCall)
