"""What ``rooflight explain`` runs of a target: a step, or a function with inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rooflight.compiling.explain.explain import Program, uncompiled
from rooflight.compiling.options import Options
from rooflight.compiling.workloads import WORKLOADS
from rooflight.workloads.errors import TargetError
from rooflight.workloads.steps import unguarded
from rooflight.workloads.targets import UserFunction, find_target, no_inputs, open_target
from rooflight.workloads.user_step import Calls, UserStep, open_user_step

if TYPE_CHECKING:
    from torch import nn


def open_program(
    target: str, options: Options, *, calls: int, place: str, inputs: str | None = None
) -> tuple[Program, tuple[str, ...]]:
    """The program of a target (of ``WORKLOADS``, or as ``find_target`` takes them), with notes on it.

    Of ``file.py:function``, see ``open_user_step``: a function that is itself the step is explained, called with each
    of its inputs; of one that makes a step the step is. Raises TargetError for what cannot be used.
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
    step = open_target(target, inputs=inputs, **asdict(options))
    return _of_step(step.description, step.run, step.model, calls), ()


def _of_user(
    found: UserFunction, target: str, options: Options, calls: int, inputs: str | None
) -> tuple[Program, tuple[str, ...]]:
    given = {name: value for name, value in asdict(options).items() if value}
    notes: list[str] = []

    def bare(function: Any) -> Any:
        plain, told = uncompiled(function)
        notes.extend(told)
        return plain

    if not found.name or given:
        open_target(target, **asdict(options))  # which says what is wrong
    opened = open_user_step(found.path, found.name, inputs, bare=bare)
    notes.extend(opened.notes)
    name = f"{found.path.name}:{found.name}"
    if not isinstance(opened.run, Calls):
        return _of_step(name, opened.run, opened.model, calls), tuple(notes)
    each = opened.run.inputs
    return _of_calls(name, opened, each * calls if len(each) == 1 else each), tuple(notes)


def _of_calls(name: str, opened: UserStep, calls: Sequence[tuple[Any, ...]]) -> Program:
    """A function that is called with each of the arguments. With a model of its own, the model's forward is compiled;
    else the function.
    """
    assert isinstance(opened.run, Calls)
    function, model = opened.run.function, opened.model
    compiled = _compiling(function, None if model is function else model)
    return Program(name=name, run=function, calls=calls, compiled=compiled)


def _of_step(name: str, run: Callable[[], Any], model: nn.Module | None, calls: int) -> Program:
    """A step that is called without arguments. With a model, the model's forward is compiled; else the step."""
    return Program(name=name, run=run, calls=[()] * calls, compiled=_compiling(run, model), backward=False)


def _compiling(run: Callable[..., Any], model: nn.Module | None) -> Callable[..., Callable[..., Any]]:
    import torch

    def compiled(**how: Any) -> Callable[..., Any]:
        if model is None:
            return torch.compile(unguarded(run), **how)
        # Module.compile leaves containers of torch.nn itself as they are
        model.forward = torch.compile(model.forward, **how)
        return run

    return compiled
