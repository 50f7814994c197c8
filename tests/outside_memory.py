"""Kernels whose results appear without an allocation, and what a recording lists of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from outside_kernels import read
from recorded_model import recorded
from torch import nn
from torch.utils import dlpack

import rooflight as rl
from rooflight.records.record import OpRecord
from rooflight.records.signature import WRITTEN_OUTSIDE

DEVICE = "H100-SXM5-80GB"


class Exported:
    """An array of a library that gives its memory away by DLPack only."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


WRAPS: dict[str, Callable[[np.ndarray], torch.Tensor]] = {
    "from_numpy": torch.from_numpy,
    "as_tensor": torch.as_tensor,
    "frombuffer": lambda array: torch.frombuffer(array, dtype=torch.float32).reshape(array.shape),
    "from_dlpack": lambda array: torch.from_dlpack(Exported(array)),
    "capsule": lambda array: dlpack.from_dlpack(array.__dlpack__()),
}
"""DLPack's are ``from_blob`` in C++, as an extension calls it."""

over_each_way = pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)


class Kernel(nn.Module):
    """Doubles outside of torch, and gives what ``give`` makes of it."""

    def __init__(self, wrap: Callable[[np.ndarray], torch.Tensor], give: Callable[[Any], Any] = lambda y: y) -> None:
        super().__init__()
        self.wrap, self.give = wrap, give

    def forward(self, x):
        return self.give(self.wrap(2 * read(x)))


def found_in(session: rl.Session) -> list[OpRecord]:
    return [op for op in session.records if op.signature.name == WRITTEN_OUTSIDE]


def found(program: Callable[[], Any], model: nn.Module | None = None, **options: Any) -> list[OpRecord]:
    return found_in(recorded(program, model, **options))


def places(ops: list[OpRecord]) -> list[tuple[str, str]]:
    return [(op.module.path, op.direction.label) for op in ops]


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, wrap):
        ctx.wrap = wrap
        return wrap(2 * read(x))

    @staticmethod
    def backward(ctx, grad):
        return ctx.wrap(2 * read(grad)), None


class Differentiable(nn.Module):
    def __init__(self, wrap: Callable[[np.ndarray], torch.Tensor]) -> None:
        super().__init__()
        self.wrap = wrap

    def forward(self, x):
        return Twice.apply(x, self.wrap)
