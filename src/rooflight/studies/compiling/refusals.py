"""What a study of torch.compile refuses before anything runs, and why a program did not compile, each in one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from rooflight.sources.workloads.errors import RunFailed, TargetError, in_one_line
from rooflight.sources.workloads.targets import Target, UserFunction, find_target, no_inputs, require_libraries
from rooflight.sources.workloads.user_step import Calls
from rooflight.studies.compiling.options import Options
from rooflight.studies.compiling.workloads import WORKLOADS

if TYPE_CHECKING:
    from torch import nn

AOT_INDUCTOR: Final = "aot-inductor"
MODES: Final = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", AOT_INDUCTOR)
"""Modes of torch.compile, and packages of AOTInductor."""
NO_COMPILER: Final = "no C++ compiler works: install g++ or clang++, or set the environment variable CXX to one"


def check_how(modes: Sequence[str], known: Sequence[str], *, threads: int | None, limit_s: float) -> None:
    """Raise ValueError for a number that is too small, or a mode that is not known."""
    if threads is not None and threads < 1:
        raise ValueError(f"--threads {threads}: at least 1")
    if not limit_s > 0:
        raise ValueError(f"--limit {limit_s:g}: seconds, more than 0")
    for mode in modes:
        if mode not in known:
            raise ValueError(f'torch.compile has no mode "{mode}": take {", ".join(known)}')


def checked_target(target: str, options: Options, *, inputs: str | None, workloads: str) -> Target | None:
    """What a target names; None for one of ``WORKLOADS``, which an error names as ``workloads``.

    Raises ValueError (TargetError) for a target that is not there or lacks a library, for inputs of one that takes
    none, and for options without effect on it.
    """
    found = None
    if target not in WORKLOADS:
        try:
            found = find_target(target)
        except TargetError as error:
            if target.isidentifier() or "-" in target:
                raise TargetError(f"{error}. {workloads}: {', '.join(WORKLOADS)}") from error
            raise
    if inputs is not None and not isinstance(found, UserFunction):
        raise TargetError(no_inputs(inputs))
    given = ", ".join(f"--{name}" for name, value in asdict(options).items() if value)
    if given and found is None:
        raise ValueError(f"{given}: no effect on the workload {target}: leave it out, or name a preset")
    if given and isinstance(found, UserFunction):
        raise TargetError(f"{given}: no effect on {target}: set it inside the function")
    if found is not None:
        require_libraries(found)
    return found


def is_compiled(value: Any) -> bool:
    """Whether a function, model or module has been through ``torch.compile``."""
    return (
        hasattr(value, "_torchdynamo_orig_callable")
        or getattr(value, "_compiled_call_impl", None) is not None
        or type(value).__name__ == "OptimizedModule"
        or hasattr(getattr(value, "forward", None), "_torchdynamo_orig_callable")
    )


def check_step(run: Any, model: nn.Module | None, target: str) -> None:
    """Raise TargetError for a step that is compiled already."""
    run = run.function if isinstance(run, Calls) else run
    if is_compiled(run):
        raise TargetError(f"{target}: the step is compiled already: pass what torch.compile was given")
    for name, module in () if model is None else model.named_modules():
        if is_compiled(module):
            what = f"its module {name}" if name else "its model"
            raise TargetError(f"{target}: {what} is compiled already: pass what torch.compile was given")


def reason_of(error: BaseException) -> str:
    """Why a program did not compile or run: of errors that torch wraps, the one inside."""
    cause = error.__cause__ if isinstance(error, RunFailed) and error.__cause__ is not None else error
    inner = getattr(cause, "inner_exception", None)
    if inner is None:
        return str(error) if isinstance(error, RunFailed) else in_one_line(error)
    reason = in_one_line(inner)
    if type(inner).__name__ == "InvalidCxxCompiler":
        return NO_COMPILER
    backend = getattr(cause, "backend_name", None)
    return f"the backend {backend} raised {reason}" if backend else reason
