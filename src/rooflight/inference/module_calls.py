"""ForwardHook: calls of a torch module, by torch's own hooks, also where it is compiled in place."""

from __future__ import annotations

import sys
from threading import get_ident
from typing import TYPE_CHECKING, Any

from torch.compiler import is_compiling

from rooflight.capture.compiled_calls import CompiledCall

if TYPE_CHECKING:
    from torch import nn

    from rooflight.inference.engine_hooks import _Timed
    from rooflight.inference.engine_mapping import Call


class ForwardHook:
    """Does before and after each call of a module what ``timed`` does, until it is removed."""

    def __init__(self, module: nn.Module, timed: _Timed) -> None:
        self._timed = timed
        self._open: dict[int, list[Call]] = {}  # by thread
        self._handles: list[Any] = []
        if module._compiled_call_impl is not None:
            self._handles.append(CompiledCall(module, self._enter, self._leave))
            return
        # prepended: torch calls leave even if a hook before enter raised
        self._handles.append(module.register_forward_pre_hook(self._enter, prepend=True, with_kwargs=True))
        self._handles.append(module.register_forward_hook(self._leave, always_call=True))

    def _enter(self, module: Any, args: Any, kwargs: Any) -> None:
        if is_compiling() or self._timed.passes():
            return
        call = self._timed.begin(module, args, kwargs)
        self._open.setdefault(get_ident(), []).append(call)
        self._timed.enter(call)

    def _leave(self, _module: Any, _args: Any, output: Any) -> None:
        if is_compiling():
            return
        calls = self._open.get(get_ident())
        if calls:
            call = calls.pop()
            call.result = output
            self._timed.leave(call, raised=output is None and sys.exc_info()[0] is not None)

    def remove(self) -> None:
        """Take it out."""
        while self._handles:
            self._handles.pop().remove()
