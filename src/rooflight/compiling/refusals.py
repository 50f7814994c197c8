"""What a comparison of eager and compiled cannot be of, and why a program did not compile, each in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rooflight.workloads.errors import RunFailed, TargetError, told_in_one_line
from rooflight.workloads.user_step import Calls

if TYPE_CHECKING:
    from torch import nn


NO_COMPILER: Final = "no C++ compiler works: install g++ or clang++, or set the environment variable CXX to one"


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
        return str(error) if isinstance(error, RunFailed) else told_in_one_line(error)
    told = told_in_one_line(inner)
    if type(inner).__name__ == "InvalidCxxCompiler":
        return NO_COMPILER
    backend = getattr(cause, "backend_name", None)
    return f"the backend {backend} raised {told}" if backend else told
