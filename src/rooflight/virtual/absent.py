"""What is not there: compilers, and libraries that are built for CUDA."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from rooflight.virtual.mode import VirtualMode


def install(mode: VirtualMode, child: Any) -> None:
    """Let a script go on without them, for the rest of the process."""
    del mode
    _compile(child)


def _compile(child: Any) -> None:
    """Compiled programs run as they are written, and are counted: what compiling gains is predicted."""

    def compile(model: Any = None, *_: Any, **__: Any) -> Any:  # noqa: A001 - torch's name
        if model is None:
            return compile
        child.compiled += 1
        return model

    def compile_module(self: nn.Module, *_: Any, **__: Any) -> None:
        del self
        child.compiled += 1

    torch.compile = compile
    nn.Module.compile = compile_module  # type: ignore[method-assign]
