"""What ``rooflight explain`` runs of a target: a step, or a function with inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from rooflight.compiling.explaining.explain import Program, check_callable, uncompiled
from rooflight.compiling.trial import Options
from rooflight.compiling.workloads import WORKLOADS
from rooflight.workloads.calls import inputs_of, takes_arguments
from rooflight.workloads.errors import TargetError
from rooflight.workloads.targets import UserFunction, find_target, no_inputs, open_target
from rooflight.workloads.user_code import imported, on_path

if TYPE_CHECKING:
    from torch import nn


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
    if inputs is not None and target in WORKLOADS:
        raise TargetError(no_inputs(inputs))
    if (workload := WORKLOADS.get(target)) is not None:
        made = workload(place)
        run, model = made if isinstance(made, tuple) else (made, None)
        return _of_step(target, run, model, calls), ()
    found = find_target(target)
    if isinstance(found, UserFunction):
        return _of_user(found, target, options, calls, inputs)
    step = open_target(target, inputs=inputs, **msgspec.structs.asdict(options))
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
        _check(function, name)
        if takes_arguments(function):
            made = inputs_of(module, name, inputs)
            return _of_function(name, function, made * calls if len(made) == 1 else made), notes
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
    _check(run, f"{name}: the step")
    return _of_step(name, run, model, calls), notes + more


def _check(function: Any, name: str) -> None:
    try:
        check_callable(function)
    except ValueError as error:
        raise TargetError(f"{name}: {error}") from error


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
