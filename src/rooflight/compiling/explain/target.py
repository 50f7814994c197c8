"""What ``rooflight explain`` explains of a target, in a fresh process: a step, or a function with inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rooflight.compiling.explain.explain import Program, explained, uncompiled
from rooflight.compiling.explain.result import ExplainDocument
from rooflight.compiling.options import ExplainOptions, Options
from rooflight.compiling.process import answered
from rooflight.compiling.refusals import AOT_INDUCTOR, MODES, check_how, checked_target
from rooflight.compiling.workloads import WORKLOADS
from rooflight.front.device import Progress, log_progress
from rooflight.machine.hardware import kind_here, usable_cores
from rooflight.workloads.errors import TargetError
from rooflight.workloads.steps import unguarded
from rooflight.workloads.targets import UserFunction, find_target, no_inputs, open_target
from rooflight.workloads.user_step import Calls, UserStep, open_user_step

if TYPE_CHECKING:
    from torch import nn

MOST_CALLS = 100
_MODES: Final = tuple(mode for mode in MODES if mode != AOT_INDUCTOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainRequest(ExplainOptions):
    """A target to explain, and how."""

    target: str
    options: Options = field(default_factory=Options)


def explained_target(request: ExplainRequest, cache: Path, *, progress: Progress = log_progress) -> ExplainDocument:
    """What each stage makes of a target; ``cache`` is Inductor's folder.

    Raises ValueError (TargetError) for what cannot run, RunFailed for a program that breaks or takes too long.
    """
    if not 1 <= request.calls <= MOST_CALLS:
        raise ValueError(f"--calls {request.calls}: 1 to {MOST_CALLS}")
    check_how([request.compile_mode], _MODES, threads=request.threads, limit_s=request.limit_s)
    options, target = request.options, request.target
    found = checked_target(target, options, inputs=request.inputs, workloads="Workloads")
    if found is not None and not isinstance(found, UserFunction):
        placed = replace(options, device=kind_here(), mode=options.mode or "forward")
        request = replace(request, options=placed)
    progress(f"explaining {target}")
    threads = request.threads or len(usable_cores())
    return answered(explanation, request, cache, threads=threads, limit_s=request.limit_s)


def explanation(request: ExplainRequest) -> ExplainDocument:
    """What the request asks for, in this process, in which nothing was compiled before."""
    program, notes = open_program(request.target, request.options, calls=request.calls, inputs=request.inputs)
    return explained(
        program,
        backend=request.backend,
        mode=request.compile_mode,
        dynamic=request.dynamic,
        code=request.code,
        dispatcher=request.dispatcher,
        notes=notes,
    )


def open_program(
    target: str, options: Options, *, calls: int, inputs: str | None = None
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
        made = workload(kind_here())
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
        plain, more = uncompiled(function)
        notes.extend(more)
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
