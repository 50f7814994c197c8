"""Closures that are passed to ``Optimizer.step``, which calls them: forward and backward passes inside the step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any


def with_closure_inside(
    args: tuple[Any, ...], kwargs: dict[str, Any], context: Callable[[], AbstractContextManager[Any]]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments of ``Optimizer.step`` (the optimizer first), with a closure that runs inside ``context()``. A hook
    before the step can return them. None if there is no closure.
    """
    closure = kwargs["closure"] if "closure" in kwargs else args[1] if len(args) > 1 else None
    if not callable(closure):
        return None

    @wraps(closure)
    def run(*inner_args: Any, **inner_kwargs: Any) -> Any:
        with context():
            return closure(*inner_args, **inner_kwargs)

    return (args, {**kwargs, "closure": run}) if "closure" in kwargs else ((args[0], run, *args[2:]), kwargs)
