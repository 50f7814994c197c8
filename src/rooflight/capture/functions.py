"""FunctionSource: finds which torch function the program called, by a torch function mode."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from rooflight.capture.dispatch import DispatchSource
from rooflight.capture.mode_stack import ModeStack

# The ops that they run belong to the functions of the forward pass.
_ENGINES: Final = frozenset({torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad})
_KEPT_UNDERSCORES: Final = 4  # of a dunder

_STACK: Final = ModeStack(push=_push_mode, pop=_pop_mode, modes=_get_current_function_mode_stack)


class FunctionSource(TorchFunctionMode):
    """Keeps the source's current function up to date: the outermost open call of ``torch.*``, ``torch.nn.functional.*``
    or a tensor's method. Backward ops belong to the function that made their autograd node.

    It replaces no attribute of torch. It belongs to the thread that enters it.
    """

    def __init__(self, source: DispatchSource) -> None:
        super().__init__()
        self._source = source
        self._numbers: dict[Any, int] = {}

    def __enter__(self) -> FunctionSource:
        _STACK.push(self)
        return self

    def __exit__(self, *_: object) -> None:
        _STACK.take_off(self)

    def leave(self) -> None:
        """Stop noting functions, however often this mode is on the stack."""
        _STACK.clear_of(self)

    def set_recomputing(self, *, recomputing: bool) -> None:
        """Begin or end the time in which a checkpoint runs a module again. The backward pass is a torch function too,
        and inside it torch would call no mode.
        """
        on_stack = self in _STACK.modes()
        if recomputing and not on_stack:
            _STACK.push(self)
        elif on_stack and not recomputing:
            _STACK.take_off(self)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _ENGINES:
            return func(*args, **(kwargs or {}))
        source = self._source
        outer = source.function
        try:
            number = self._numbers.get(func)
            if number is None:
                number = self._numbers[func] = source.tape.function(function_name(func))
            source.move(source.module, number)
        except Exception as error:
            source.fail(error)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            try:
                source.move(source.module, outer)
            except Exception as error:
                source.fail(error)


def function_name(func: Any) -> str:
    """The name of a torch function in reports: ``linear``, ``add`` for ``Tensor.__add__``, ``mm`` for
    ``torch.ops.aten.mm.default``, ``T`` for the property.
    """
    name = str(getattr(func, "__name__", "") or type(func).__name__)
    if name in ("__get__", "__set__", "__delete__"):
        name = str(getattr(getattr(func, "__self__", None), "__name__", name))
    if name.startswith("__") and name.endswith("__") and len(name) > _KEPT_UNDERSCORES:
        return name[2:-2]
    return name.split(".")[0] if isinstance(func, torch._ops.OpOverload) else name
