"""What ``rooflight explain`` runs of a target: a step, or a function with inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rooflight.compiling.explaining.explain import Program, check_callable, uncompiled
from rooflight.compiling.trial import Options
from rooflight.compiling.workloads import WORKLOADS
from rooflight.workloads.errors import TargetError, told_in_one_line
from rooflight.workloads.targets import UserFunction, find_target, open_target
from rooflight.workloads.user_code import imported, on_path

if TYPE_CHECKING:
    from torch import nn

INPUTS: Final = "get_inputs"
"""The function of a file that makes inputs, unless another is named."""


def open_program(
    target: str, options: Options, *, calls: int, place: str, inputs: str | None = None
) -> tuple[Program, tuple[str, ...]]:
    """The program of a target (of ``WORKLOADS``, or as ``find_target`` takes them), with notes on it.

    Of ``file.py:function``: a function that takes arguments, or a module, is called with what the function ``inputs``
    of the file returns, a tuple or list of arguments; if that is a generator, each is one call. A function without
    arguments that returns a step (a callable, or that and its model) is called once, and the step is explained; one
    that returns anything else is explained itself. Raises TargetError for what cannot be used.
    """
    import torch

    torch.manual_seed(0)
    if (workload := WORKLOADS.get(target)) is not None:
        made = workload(place)
        run, model = made if isinstance(made, tuple) else (made, None)
        return _of_step(target, run, model, calls), ()
    found = find_target(target)
    if isinstance(found, UserFunction):
        return _of_user(found, target, options, calls, inputs)
    if inputs is not None:
        raise TargetError(f"--inputs {inputs}: only a function of your own, file.py:function, takes inputs")
    step = open_target(target, **msgspec.structs.asdict(options))
    return _of_step(step.description, step.run, step.model, calls), ()


def _of_user(
    found: UserFunction, target: str, options: Options, calls: int, inputs: str | None
) -> tuple[Program, tuple[str, ...]]:
    given = {name: value for name, value in msgspec.structs.asdict(options).items() if value}
    path = found.path.resolve()
    if not found.name or given:
        open_target(target, **msgspec.structs.asdict(options))  # which says what is wrong
    with on_path(path.parent):
        module = imported(path)
        function = getattr(module, found.name, None)
        if function is None:
            open_target(target)
        function, notes = uncompiled(function)
        name = f"{path.name}:{found.name}"
        if inspect.isclass(function):
            raise TargetError(f"{name} is a class: make an object of it in the file, and name that, or a function")
        try:
            check_callable(function)
        except ValueError as error:
            raise TargetError(f"{name}: {error}") from error
        if _takes_arguments(function):
            made = _inputs(module, inputs, name, calls)
            return _of_function(name, function, made), notes
        if inputs is not None:
            raise TargetError(f"--inputs {inputs}: {name} takes no arguments")
        if inspect.isgeneratorfunction(function):
            return _of_function(name, function, [()] * calls), notes
        result = function()
    if callable(result) and not hasattr(result, "parameters"):
        run, model = result, None
    elif isinstance(result, tuple) and len(result) == 2 and callable(result[0]) and hasattr(result[1], "parameters"):
        run, model = result
    else:
        return _of_function(name, function, [()] * calls), notes
    run, more = uncompiled(run)
    return _of_step(name, run, model, calls), notes + more


def _takes_arguments(function: Any) -> bool:
    """Whether a function, or a module's forward, has an argument without default."""
    try:
        signature = inspect.signature(getattr(function, "forward", function))
    except (TypeError, ValueError):  # of C
        return True
    needed = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(each.default is each.empty and each.kind in needed for each in signature.parameters.values())


def _inputs(module: Any, inputs: str | None, name: str, calls: int) -> list[tuple[Any, ...]]:
    make = getattr(module, inputs or INPUTS, None)
    if not callable(make):
        there = f"the file has no function {inputs}" if inputs else f"define {INPUTS}() beside it, or name --inputs"
        raise TargetError(f"{name} takes arguments: {there}, which returns them")
    try:
        made = make()
        if inspect.isgenerator(made):
            several = [_arguments(each, name) for each in made]
            if not several:
                raise TargetError(f"{name}: {inputs or INPUTS} yields no inputs")
            return several
    except TargetError:
        raise
    except Exception as error:
        raise TargetError(f"{inputs or INPUTS} raised {told_in_one_line(error)}") from error
    return [_arguments(made, name)] * calls


def _arguments(made: Any, name: str) -> tuple[Any, ...]:
    if isinstance(made, list | tuple):
        return tuple(made)
    if hasattr(made, "shape"):
        return (made,)
    raise TargetError(f"{name}: inputs are a tuple or list of arguments, not {type(made).__name__}")


def _of_function(name: str, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> Program:
    import torch

    return Program(name=name, run=function, calls=calls, compiled=lambda **how: torch.compile(function, **how))


def _of_step(name: str, run: Callable[[], Any], model: nn.Module | None, calls: int) -> Program:
    """A step that is called without arguments. With a model, the model's forward is compiled; else the step."""
    import torch

    def compiled(**how: Any) -> Callable[..., Any]:
        if model is None:
            return torch.compile(inspect.unwrap(run), **how)
        # Module.compile leaves containers of torch.nn itself as they are
        model.forward = torch.compile(model.forward, **how)
        return run

    return Program(name=name, run=run, calls=[()] * calls, compiled=compiled, backward=model is None)
