"""A function or target called eagerly, then compiled; and what torch logged meanwhile, stage by stage."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rooflight.front.device import Progress, log_progress
from rooflight.hardware.machine.environment import not_to_be_trusted
from rooflight.hardware.machine.hardware import kind_here, usable_cores
from rooflight.records.report import Report
from rooflight.sources.workloads.errors import TargetError, first_words, in_one_line
from rooflight.sources.workloads.steps import unguarded
from rooflight.sources.workloads.targets import UserFunction, find_target, no_inputs, open_target
from rooflight.sources.workloads.user_step import Calls, differentiated, open_user_step
from rooflight.studies.compiling.explain.dispatcher import Dispatches
from rooflight.studies.compiling.explain.result import Dispatched, ExplainDocument
from rooflight.studies.compiling.explain.stages import stages_of
from rooflight.studies.compiling.explain.tables import report_of
from rooflight.studies.compiling.explain.trace import Heard, listening
from rooflight.studies.compiling.options import ExplainOptions, Options
from rooflight.studies.compiling.process import answered
from rooflight.studies.compiling.refusals import AOT_INDUCTOR, MODES, NO_COMPILER, check_how, checked_target
from rooflight.studies.compiling.workloads import WORKLOADS, open_workload

if TYPE_CHECKING:
    from torch import nn


CALLS: Final = 2
MOST_CALLS: Final = 100
_MODES: Final = tuple(mode for mode in MODES if mode != AOT_INDUCTOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What is explained: ``run`` called with each of ``calls``; ``compiled`` compiles it, or its model, by the options
    of torch.compile, and returns what to call instead. ``backward``: gradients of results are computed too.
    """

    name: str
    run: Callable[..., Any]
    calls: Sequence[tuple[Any, ...]]
    compiled: Callable[..., Callable[..., Any]]
    backward: bool = True


def explain(
    function: Callable[..., Any],
    *args: Any,
    calls: Sequence[tuple[Any, ...]] = (),
    backend: str = "inductor",
    mode: str | None = None,
    dynamic: bool | None = None,
    code: bool = False,
    dispatcher: bool = True,
) -> Report:
    """What dispatcher, Dynamo, AOT autograd, Inductor and CUDA graphs make of a function or module.

    It is called with ``args`` once eagerly and twice compiled; ``calls`` are the arguments of further calls, to see
    what compiles again. Where results require grad, their gradients are computed, and no ``.grad`` is written.
    ``code``: with the sources of kernels. Without ``dispatcher`` the eager call is left out. ``backend``, ``mode`` and
    ``dynamic`` are torch.compile's.

    What torch compiled earlier in this process is dropped, and compiles again when it is called. Raises ValueError for
    what torch.compile does not take, and where others can write to Inductor's folder; an error of the function passes
    unchanged.
    """
    import torch

    plain, notes = uncompiled(function)
    check_callable(plain)
    if backend == "inductor" and (why := not_to_be_trusted()):
        raise ValueError(why)
    name = getattr(plain, "__qualname__", None) or type(plain).__name__
    program = Program(
        name=str(name),
        run=plain,
        calls=[args] * CALLS + list(calls),
        compiled=lambda **how: torch.compile(plain, **how),
    )
    options = ExplainOptions(
        backend=backend, compile_mode=mode or "default", dynamic=dynamic, code=code, dispatcher=dispatcher
    )
    return report_of(explained(program, options, notes))


def uncompiled(function: Any) -> tuple[Any, tuple[str, ...]]:
    """A function without the torch.compile that is already applied, with a note of that."""
    inner = getattr(function, "_orig_mod", None) or getattr(function, "_torchdynamo_orig_callable", None)
    if inner is None:
        return function, ()
    return inner, ("The function is already compiled: it is explained without its own torch.compile.",)


def check_callable(function: Any) -> None:
    """Raise ValueError for what torch.compile does not take."""
    if not callable(function):
        raise ValueError(f"{type(function).__name__} is not callable: pass a function or a module")
    called = function if inspect.isroutine(function) else getattr(function, "forward", function)
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
        raise ValueError("an async function: torch.compile does not compile coroutines; explain a function it awaits")


@contextmanager
def _restored() -> Iterator[None]:
    """Put back after the block what Inductor, and the packages that it imports, change for good."""
    limit, path, environment = sys.getrecursionlimit(), list(sys.path), dict(os.environ)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
        sys.path[:] = path
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)


@_restored()
def explained(program: Program, options: ExplainOptions, notes: Sequence[str] = ()) -> ExplainDocument:
    """The explanation of a program. An error that it raises in eager passes unchanged; one of the compiler is part of
    the answer.
    """
    import torch

    dispatched, not_seen = _dispatched(program) if options.dispatcher else ((), ())
    mode = options.compile_mode
    failed = _generator(program.run)
    with _fresh(), listening() as heard:
        args: tuple[Any, ...] = program.calls[0]
        try:
            run = program.compiled(backend=options.backend, dynamic=options.dynamic, mode=mode)
            for heard.call, args in enumerate(program.calls, start=1):
                _called(run, args, backward=program.backward)
        except Exception as error:
            with torch.compiler.set_stance("force_eager"):
                program.run(*args)  # an error of the program itself is raised as it is without a compiler
            failed = compiler_error(error) or f"compiled, it raises {in_one_line(error)}, and eager does not"
    return ExplainDocument(
        target=program.name,
        torch=str(torch.__version__),
        device=torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        backend=options.backend,
        mode=mode,
        calls=len(program.calls),
        not_compiled=failed or _nothing_compiled(heard),
        dispatched=dispatched,
        cuda_graphs_asked=mode in ("reduce-overhead", "max-autotune"),
        notes=(*notes, *not_seen),
        **stages_of(heard, dynamic=options.dynamic, code=options.code),
    )


def _dispatched(program: Program) -> tuple[tuple[Dispatched, ...], tuple[str, ...]]:
    dispatches, args = Dispatches(), program.calls[0]
    try:
        with dispatches.watching():
            _called(program.run, args, backward=program.backward)
    except Exception as error:
        _called(program.run, args, backward=program.backward)  # an error of the program is raised without the watching
        why = first_words(f"{type(error).__name__}: {error}")
        return (), (f"The dispatcher's work in this function cannot be watched: {why}",)
    return dispatches.explained(), ()


@contextmanager
def _fresh() -> Iterator[None]:
    import torch

    torch._dynamo.reset()
    try:
        yield
    finally:
        torch._dynamo.reset()


def _called(run: Callable[..., Any], args: tuple[Any, ...], *, backward: bool) -> None:
    result = run(*args)
    if inspect.isgenerator(result):
        result = list(result)
    if backward:
        differentiated(result)


def compiler_error(error: BaseException) -> str:
    """Why the compiler failed, in a line; empty for an error that is not the compiler's."""
    from torch._dynamo.exc import TorchDynamoException
    from torch._inductor.exc import InvalidCxxCompiler

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, InvalidCxxCompiler):
            return NO_COMPILER
        cause = getattr(cause, "inner_exception", None) or cause.__cause__
    if not isinstance(error, TorchDynamoException):
        return ""
    inner = getattr(error, "inner_exception", None) or error
    text = first_words(str(inner).partition("Set TORCHDYNAMO_VERBOSE")[0]) or type(inner).__name__
    return f"{type(inner).__name__}: {text}"


def _generator(function: Any) -> str:
    called = function if inspect.isroutine(function) else getattr(function, "forward", function)
    if inspect.isgeneratorfunction(called):
        return "a generator function runs eagerly: torch.compile traces it only inside a function that consumes it"
    return ""


def _nothing_compiled(heard: Heard) -> str:
    if heard.of("dynamo_start"):
        return ""
    return (
        "torch compiled nothing: the function is skipped (torch.compiler.disable), is implemented in C, or a stance "
        "such as force_eager is set"
    )


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
        placed = replace(options, device=kind_here(), step=options.step or "forward")
        request = replace(request, options=placed)
    progress(f"explaining {target}")
    threads = request.threads or len(usable_cores())
    return answered(explanation, request, cache, threads=threads, limit_s=request.limit_s)


def explanation(request: ExplainRequest) -> ExplainDocument:
    """What the request asks for, in this process, in which nothing was compiled before."""
    program, notes = open_program(request.target, request.options, calls=request.calls, inputs=request.inputs)
    return explained(program, request, notes)


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
    found = None if target in WORKLOADS else find_target(target)
    if isinstance(found, UserFunction):
        return _of_user(found, target, options, calls, inputs)
    step = (
        open_workload(target, kind_here()) if found is None else open_target(target, inputs=inputs, **asdict(options))
    )
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
    function, each = opened.run.function, opened.run.inputs
    # a model of its own has its forward compiled
    compiled = _compiling(function, None if opened.model is function else opened.model)
    program = Program(name=name, run=function, calls=each * calls if len(each) == 1 else each, compiled=compiled)
    return program, tuple(notes)


def _of_step(name: str, run: Callable[[], Any], model: nn.Module | None, calls: int) -> Program:
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
