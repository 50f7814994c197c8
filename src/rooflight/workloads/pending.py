"""Functions that a call does not run, and results that have not run yet: coroutines and generators."""

from __future__ import annotations

import inspect
from typing import Any

from rooflight.workloads.errors import TargetError


def refuse_async(function: Any, where: str) -> None:
    """Raise TargetError for an async function or generator; ``where`` names what was asked for."""
    if kind := _kind(function, inspect.isasyncgenfunction, inspect.iscoroutinefunction):
        raise TargetError(_runs_nothing(where, kind))


def refuse_generator(function: Any, where: str) -> None:
    """Raise TargetError for a generator function."""
    if kind := _kind(function, inspect.isgeneratorfunction):
        raise TargetError(_runs_nothing(where, kind))


def refuse_pending(result: Any, where: str) -> None:
    """Raise TargetError where what a step returned shows that it has not run yet."""
    if inspect.iscoroutine(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        kind = "a coroutine" if inspect.iscoroutine(result) else "a generator"
        if inspect.iscoroutine(result):
            result.close()  # else Python warns, later, that it was never awaited
        raise TargetError(_runs_nothing(where, f"a function that returns {kind}"))


def _kind(function: Any, *kinds: Any) -> str:
    names = {
        inspect.isasyncgenfunction: "an async generator",
        inspect.iscoroutinefunction: "an async function",
        inspect.isgeneratorfunction: "a generator function",
    }
    called = getattr(function, "forward", function)
    for form in (called, getattr(called, "__call__", None)):  # noqa: B004 - an object may have an async __call__
        for is_it in kinds:
            if is_it(form):
                return names[is_it]
    return ""


def _runs_nothing(where: str, kind: str) -> str:
    return f"{where} is {kind}, and calling it runs nothing: name a function that runs it to its end"
