"""A function called eagerly, then compiled; and what torch logged meanwhile, stage by stage."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from rooflight.compiling.explain.dispatcher import Dispatches
from rooflight.compiling.explain.result import Dispatched, ExplainDocument
from rooflight.compiling.explain.stages import stages_of
from rooflight.compiling.explain.tables import report_of
from rooflight.compiling.explain.trace import Heard, listening
from rooflight.compiling.refusals import NO_COMPILER
from rooflight.records.report import Report
from rooflight.workloads.errors import first_words, told_in_one_line
from rooflight.workloads.user_step import differentiated

CALLS: Final = 2


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
    what torch.compile does not take; an error of the function passes unchanged.
    """
    import torch

    plain, notes = uncompiled(function)
    check_callable(plain)
    name = getattr(plain, "__qualname__", None) or type(plain).__name__
    program = Program(
        name=str(name),
        run=plain,
        calls=[args] * CALLS + list(calls),
        compiled=lambda **how: torch.compile(plain, **how),
    )
    return report_of(
        explained(program, backend=backend, mode=mode, dynamic=dynamic, code=code, dispatcher=dispatcher, notes=notes)
    )


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


def explained(
    program: Program,
    *,
    backend: str = "inductor",
    mode: str | None = None,
    dynamic: bool | None = None,
    code: bool = False,
    dispatcher: bool = True,
    notes: Sequence[str] = (),
) -> ExplainDocument:
    """The explanation of a program. An error that it raises in eager passes unchanged; one of the compiler is part of
    the answer.
    """
    import torch

    dispatched, not_seen = _dispatched(program) if dispatcher else ((), ())
    how: dict[str, Any] = {"backend": backend, "dynamic": dynamic}
    if mode not in (None, "default"):
        how["mode"] = mode
    failed = _generator(program.run)
    with _fresh(), listening() as heard:
        args: tuple[Any, ...] = program.calls[0]
        try:
            run = program.compiled(**how)
            for args in program.calls:
                _called(run, args, backward=program.backward)
        except Exception as error:
            _raise_as_eager(program.run, args)
            failed = compiler_error(error) or f"compiled, it raises {told_in_one_line(error)}, and eager does not"
    return ExplainDocument(
        target=program.name,
        torch=str(torch.__version__),
        device=torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        backend=backend,
        mode=mode or "default",
        calls=len(program.calls),
        not_compiled=failed or _nothing_compiled(heard),
        dispatched=dispatched,
        cuda_graphs_asked=mode in ("reduce-overhead", "max-autotune"),
        notes=(*notes, *not_seen),
        **stages_of(heard, dynamic=dynamic, code=code),
    )


def _dispatched(program: Program) -> tuple[tuple[Dispatched, ...], tuple[str, ...]]:
    """What the dispatcher did in the first call, eagerly; a note where it cannot be watched, as in ``torch.cond``."""
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
    """Nothing is compiled at the begin, and nothing remains."""
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


def _raise_as_eager(run: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Call eagerly what failed: an error of the program itself is raised as it is without a compiler."""
    import torch

    with torch.compiler.set_stance("force_eager"):
        run(*args)


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
