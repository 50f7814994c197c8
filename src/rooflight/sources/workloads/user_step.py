"""The step of a user's function or module: it makes a step, or it is the step itself, with inputs if it takes any."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from inspect import Parameter
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from rooflight.sources.workloads.errors import TargetError, in_one_line, need_torch
from rooflight.sources.workloads.steps import Step, guarded
from rooflight.sources.workloads.user_code import (
    called,
    function_of,
    parameters_of,
    refuse_async,
    refuse_generator,
    refuse_pending,
)

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
    parameters, needed = _parameters(function), (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return parameters is None or any(each.default is each.empty and each.kind in needed for each in parameters)


def keyword_only(function: Any) -> list[str]:
    """The arguments without default that a function, or a module's forward, takes by keyword alone."""
    parameters = _parameters(function) or ()
    return [each.name for each in parameters if each.kind is each.KEYWORD_ONLY and each.default is each.empty]


def _parameters(function: Any) -> tuple[Parameter, ...] | None:
    return parameters_of(getattr(function, "forward", function))


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
        raise TargetError(f"{inputs or INPUTS} raised {in_one_line(error)}") from error
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
    leaves = list(_gradient_leaves(tensors))
    # gradients that the function itself has written: taken once more they would be work that it does not do
    if not leaves or any(leaf.grad is not None for leaf in leaves):
        return ()
    try:
        return torch.autograd.grad(tensors, leaves, [_ones_like(each, ones) for each in tensors], allow_unused=True)
    except RuntimeError as error:
        if "through the graph a second time" not in str(error):
            raise
        return ()


def _ones_like(tensor: Any, ones: dict[Any, Any] | None) -> Any:
    import torch

    if ones is None or tensor.layout != torch.strided:
        return torch.ones_like(tensor)
    form = (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
    if form not in ones:
        ones[form] = torch.ones_like(tensor)
    return ones[form]


def _gradient_leaves(tensors: Sequence[Any]) -> Iterator[Any]:
    waiting, seen = [each.grad_fn for each in tensors], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        waiting += [after for after, _ in node.next_functions]


_WANTED: Final = "return a zero-argument callable, or (callable, model)"
_PLAIN: Final = (str, bytes, bool, int, float, complex, type(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class UserStep:
    """The step of a user's function: ``run``, a ``Calls`` if the function is itself the step. ``has_run``: it was
    called once, to see which of the two it is.
    """

    run: Callable[[], Any]
    model: Any = None
    notes: tuple[str, ...] = ()
    has_run: bool = False


def load_step(path: Path, name: str, inputs: str | None = None) -> Step:
    """The step of function or module ``name`` of the file (see ``open_user_step``), whose errors are one line.

    Raises TargetError when the file, a function or what it returns is not usable.
    """
    path = path.resolve()
    where = f"{path.name}:{name}"
    opened = open_user_step(path, name, inputs)
    refuse_generator(opened.run.function if isinstance(opened.run, Calls) else opened.run, where)
    parameter = next(opened.model.parameters(), None) if opened.model is not None else None
    return Step(
        run=guarded(opened.run, prefer=path),
        model=opened.model,
        description=where,
        dtype=None if parameter is None else str(parameter.dtype).removeprefix("torch."),
        device=None if parameter is None else str(parameter.device),
        notes=opened.notes,
        has_run=opened.has_run,
    )


def open_user_step(
    path: Path, name: str, inputs: str | None = None, *, bare: Callable[[Any], Any] = lambda function: function
) -> UserStep:
    """The step of function or module ``name`` of the file.

    One that takes arguments is the step itself, called with what the function ``inputs`` of the file returns, by
    default ``get_inputs``. Any other is called once: it makes the step if it returns a callable, or that and its model;
    what is returned may take arguments, too. If it returns tensors, numbers or nothing, it is the step itself. ``bare``
    is applied to the function and to a callable that it returns, before either is called. The file's folder is on
    sys.path meanwhile. Raises TargetError if the file, a function or what it returns is not usable.
    """
    path = path.resolve()
    where = f"{path.name}:{name}"
    with function_of(path, name, "step") as (module, found):
        if inspect.isclass(found):
            raise TargetError(f"{where} is a class: make an object of it in the file, and name that, or a function")
        function = bare(found)
        refuse_async(function, where)
        if takes_arguments(function) or (inputs is not None and _may_take_arguments(function)):
            return _calls(function, where, module, inputs)
        if inspect.isgeneratorfunction(function):
            return _itself(function, where, inputs)
        made = called(function, path, name, "step")
        run, model = made if isinstance(made, tuple) and len(made) == 2 and callable(made[0]) else (made, None)
        if callable(run):
            return _made(bare(run), model, where, module, inputs)
        _refuse_what_is_no_result(made, where)
        return _itself(function, where, inputs, note=_note(made, where), has_run=True)


def _made(run: Any, model: Any, where: str, module: ModuleType, inputs: str | None) -> UserStep:
    nn = need_torch().nn
    if model is not None and not isinstance(model, nn.Module):
        raise TargetError(f"{where} returned {type(model).__name__} as the model: {_WANTED}")
    if inspect.isclass(run):
        raise TargetError(f"{where} returned the class {run.__name__}: return an object of it, or a function")
    refuse_async(run, f"{where}: the step")
    if takes_arguments(run):
        what = "a model" if isinstance(run, nn.Module) else "a callable"
        return _calls(run, where, module, inputs, model=model, subject=f"{where} returned {what}, which")
    if inputs is not None:
        raise TargetError(f"--inputs {inputs}: {where} takes no arguments")
    return UserStep(run=run, model=run if model is None and isinstance(run, nn.Module) else model)


def _calls(
    function: Any, where: str, module: ModuleType, inputs: str | None, *, model: Any = None, subject: str = ""
) -> UserStep:
    if named := keyword_only(function):
        raise TargetError(
            f"{subject or where} needs {', '.join(named)} by keyword, and {inputs or INPUTS}() gives positional "
            "arguments: give it a default, or name a function that passes it on"
        )
    own = function if isinstance(function, need_torch().nn.Module) else None
    made = inputs_of(module, where, inputs, subject=subject)
    return UserStep(run=Calls(function, made), model=own if model is None else model)


def _itself(function: Any, where: str, inputs: str | None, *, note: str = "", has_run: bool = False) -> UserStep:
    if inputs is not None:
        raise TargetError(f"--inputs {inputs}: {where} takes no arguments")
    own = function if isinstance(function, need_torch().nn.Module) else None
    return UserStep(run=Calls(function, [()]), model=own, notes=(note,) * bool(note), has_run=has_run)


def _may_take_arguments(function: Any) -> bool:
    return any(each.kind not in (each.KEYWORD_ONLY, each.VAR_KEYWORD) for each in _parameters(function) or ())


def _note(made: Any, where: str) -> str:
    if made is None:
        return f"{where} returned nothing, so it is taken as the step. If it is to make a step, let it return that."
    return f"{where} returned no callable, so it is itself the step."


def _refuse_what_is_no_result(made: Any, where: str) -> None:
    for each in _leaves(made):
        refuse_pending(each, where)
        if callable(each) or not (isinstance(each, _PLAIN) or hasattr(each, "dtype")):
            what = ("" if each is made else f"{type(made).__name__} with ") + type(each).__name__
            raise TargetError(f"{where} returned {what}: {_WANTED}; tensors, if it is itself the step")


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for each in value.values():
            yield from _leaves(each)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for each in value:
            yield from _leaves(each)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _leaves(getattr(value, field.name))
    else:
        yield value
