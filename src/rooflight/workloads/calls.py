"""A function of the user's that takes arguments: the inputs it is called with, and a step that calls it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, Final

from rooflight.workloads.errors import TargetError, told_in_one_line

INPUTS: Final = "get_inputs"
"""The function of a file that makes inputs, unless another is named."""


class Calls:
    """A step of a function that takes arguments: a call with the next inputs, the first again after the last.

    Where a result requires grad, the step computes its gradients too, and returns them beside it.
    """

    def __init__(self, function: Callable[..., Any], inputs: Sequence[tuple[Any, ...]]) -> None:
        self.function = function
        self.inputs = tuple(inputs)
        self._calls = 0
        self._ones: dict[Any, Any] = {}

    def __call__(self) -> Any:
        """Call the function; what it returns, with gradients where it has some."""
        args = self.inputs[self._calls % len(self.inputs)]
        self._calls += 1
        result = self.function(*args)
        gradients = differentiated(result, self._ones)
        return (result, gradients) if gradients else result

    def of(self, function: Callable[..., Any]) -> Calls:
        """The same calls of another function, such as this one compiled."""
        return Calls(function, self.inputs)


def takes_arguments(function: Any) -> bool:
    """Whether a function, or a module's forward, has an argument without default."""
    try:
        signature = inspect.signature(getattr(function, "forward", function))
    except (TypeError, ValueError):  # of C
        return True
    needed = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(each.default is each.empty and each.kind in needed for each in signature.parameters.values())


def keyword_only(function: Any) -> list[str]:
    """The arguments without default that a function, or a module's forward, takes by keyword alone."""
    try:
        parameters = inspect.signature(getattr(function, "forward", function)).parameters.values()
    except (TypeError, ValueError):  # of C
        return []
    return [each.name for each in parameters if each.kind is each.KEYWORD_ONLY and each.default is each.empty]


def inputs_of(module: ModuleType, where: str, inputs: str | None = None, *, subject: str = "") -> list[tuple[Any, ...]]:
    """The arguments that the function ``inputs`` of a file returns, for the function ``where`` of it: one tuple, or, if
    it is a generator, one for each call. Raises TargetError where there are none, which says what takes them:
    ``subject``, by default the function.
    """
    make = getattr(module, inputs or INPUTS, None)
    if not callable(make):
        if inputs:
            raise TargetError(
                f"--inputs {inputs}: the file of {where} has no such function, which returns its arguments"
            )
        raise TargetError(
            f"{subject or where} takes arguments: define {INPUTS}() beside it, which returns them, or name a function "
            "without arguments that makes the step"
        )
    try:
        made = make()
        if not inspect.isgenerator(made):
            return [_arguments(made, where)]
        several = [_arguments(each, where) for each in made]
    except TargetError:
        raise
    except Exception as error:
        raise TargetError(f"{inputs or INPUTS} raised {told_in_one_line(error)}") from error
    if not several:
        raise TargetError(f"{where}: {inputs or INPUTS} yields no inputs")
    return several


def _arguments(made: Any, where: str) -> tuple[Any, ...]:
    if isinstance(made, list | tuple):
        return tuple(made)
    if hasattr(made, "shape"):
        return (made,)
    raise TargetError(f"{where}: inputs are a tuple or list of arguments, not {type(made).__name__}")


def differentiated(result: Any, ones: dict[Any, Any] | None = None) -> tuple[Any, ...]:
    """The gradients of a result's sum, without writing any; none where it has none, or where the function itself has
    called backward. The sum itself is not computed: the gradients that the results get are ``ones``, which keeps them
    by form, so that making them is no part of later calls.
    """
    import torch
    from torch.utils import _pytree

    tensors = [
        each
        for each in _pytree.tree_leaves(result)
        if isinstance(each, torch.Tensor) and each.requires_grad and each.grad_fn is not None
    ]
    if not tensors or not torch.is_grad_enabled():
        return ()
    leaves = list(_leaves(tensors))
    # gradients that the function itself has written: taken once more they would be work that it does not do
    if not leaves or any(leaf.grad is not None for leaf in leaves):
        return ()
    try:
        return torch.autograd.grad(tensors, leaves, [_ones_like(each, ones) for each in tensors], allow_unused=True)
    except RuntimeError as error:
        if "through the graph a second time" not in str(error):
            raise
        return ()


def _ones_like(tensor: Any, kept: dict[Any, Any] | None) -> Any:
    import torch

    if kept is None or tensor.layout != torch.strided:
        return torch.ones_like(tensor)
    form = (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
    if form not in kept:
        kept[form] = torch.ones_like(tensor)
    return kept[form]


def _leaves(tensors: Sequence[Any]) -> Iterator[Any]:
    """The tensors whose gradients autograd would accumulate."""
    waiting, seen = [each.grad_fn for each in tensors], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        waiting += [after for after, _ in node.next_functions]
