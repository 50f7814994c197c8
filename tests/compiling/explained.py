"""Explanations of functions in this process."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Inductor's import warns of what torch itself still uses
    import torch._inductor.compile_fx

from rooflight.studies.compiling.explain.explain import Program, explained
from rooflight.studies.compiling.explain.result import ExplainDocument
from rooflight.studies.compiling.options import ExplainOptions

X = torch.arange(32.0).reshape(4, 8) / 32


def explanation(function: Callable[..., Any], *calls: tuple[Any, ...], backend="eager", **options) -> ExplainDocument:
    """What is found of a function over calls; by default without the dispatcher, and without AOT autograd."""
    program = Program(
        name=getattr(function, "__name__", "f"),
        run=function,
        calls=list(calls) or [(X.clone(),)] * 2,
        compiled=lambda **kwargs: torch.compile(function, **kwargs),
    )
    return explained(program, ExplainOptions(**{"backend": backend, "dispatcher": False, **options}))


def in_states(function: Callable[..., Any], states: Sequence[Callable[[], Any]]) -> Program:
    """A program whose compiled calls run each in a state: what a function returns is entered, if it can be."""

    def compiled(**how: Any) -> Callable[..., Any]:
        run, waiting = torch.compile(function, **how), iter(states)

        def call(*args: Any) -> Any:
            with next(waiting)() or nullcontext():
                return run(*args)

        return call

    return Program(name="states", run=function, calls=[(X.clone(),)] * len(states), compiled=compiled)
