"""A function that is recorded as a module's forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class Calls(nn.Module):
    """A function as a module's forward."""

    def __init__(self, function: Callable[..., Any], *modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.inner = nn.ModuleList(modules)

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*self.inner, *inputs)
