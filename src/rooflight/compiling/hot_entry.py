"""Entries: where calls of a function or module are intercepted, and given back at no cost."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from torch import nn

Call = Callable[..., Any]


class ForwardCall(functools.partial[Any]):
    """What stands in the place of a module's ``forward``. Called in C; a copy of its module, deep or pickled, has the
    forward of its class instead, since this one computes with the weights of the original.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        (module,) = self.of_module
        return types.MethodType(type(module).forward, memo.get(id(module), module))

    def __reduce__(self) -> Any:
        (module,) = self.of_module
        return functools.partial, (type(module).forward, module)

    of_module: tuple[nn.Module]


class ModuleEntry:
    """The ``forward`` of a module, replaced on the instance: hooks, class and state stay as they are."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._own: Any = module.__dict__.get("forward")  # one that the program put there
        self.eager: Call = module.forward
        self.name = type(module).__name__

    def bind(self, call: Call) -> None:
        """Have calls of the module run ``call``; the eager forward: as if nothing had been intercepted."""
        if call is self.eager:
            if self._own is None:
                self.module.__dict__.pop("forward", None)
            else:
                self.module.__dict__["forward"] = self._own
            return
        forward = ForwardCall(call)
        forward.of_module = (self.module,)
        functools.update_wrapper(forward, self.eager)
        self.module.__dict__["forward"] = forward


class FunctionEntry:
    """A function that calls another one, which can be exchanged."""

    module = None

    def __init__(self, function: Call) -> None:
        self.eager = function
        self.name = getattr(function, "__qualname__", type(function).__name__).replace("<locals>.", "")
        target = function

        @functools.wraps(function, updated=())
        def hot(*args: Any, **kwargs: Any) -> Any:
            return target(*args, **kwargs)

        def bind(call: Call) -> None:
            nonlocal target
            target = call

        hot.is_hot = True  # type: ignore[attr-defined]
        self.bind, self.call = bind, hot


def is_hot(target: Any) -> bool:
    """Whether calls of a function or module are intercepted already."""
    return getattr(target, "is_hot", False) is True or isinstance(
        getattr(target, "__dict__", {}).get("forward"), ForwardCall
    )


Entry = ModuleEntry | FunctionEntry
