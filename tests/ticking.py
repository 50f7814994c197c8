"""Modules whose work takes the seconds a test says, forward and backward, on a clock that only they move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from fake_clock import FakeClock
from torch import nn

from rooflight.records.record import Direction
from rooflight.sources.capture.time.marks import HostMarks
from rooflight.sources.capture.time.spans import Spans, SpanTimer

FORWARD, BACKWARD, OPTIMIZER = Direction.FORWARD, Direction.BACKWARD, Direction.OPTIMIZER

Seconds = dict[tuple[str, Direction], int]


class _Tick(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, clock: FakeClock, forward_s: int, backward_s: int) -> torch.Tensor:
        ctx.clock, ctx.backward_s = clock, backward_s
        clock.advance(forward_s)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        ctx.clock.advance(ctx.backward_s)
        return grads[0] * 2, None, None, None


def tick(x: torch.Tensor, clock: FakeClock, forward_s: int, backward_s: int = 0) -> torch.Tensor:
    """``2 * x``, which takes so many seconds forward and so many backward."""
    return _Tick.apply(x, clock, forward_s, backward_s)


class Leaf(nn.Module):
    """A module with one weight."""

    def __init__(self, clock: FakeClock, forward_s: int, backward_s: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.clock, self.forward_s, self.backward_s = clock, forward_s, backward_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return tick(x * self.weight, self.clock, self.forward_s, self.backward_s)


class Ticking:
    """A clock, and the spans that a timer with this clock finds. Every step's spans must sum to what the clock says."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.errors: list[Exception] = []
        self._cut_ns = 0

    def timer(self, models: nn.Module | Mapping[str, nn.Module]) -> SpanTimer:
        models = {"": models} if isinstance(models, nn.Module) else models
        return SpanTimer(models, self.errors.append, marks=HostMarks(self.clock.now_ns))

    @contextmanager
    def attached(self, models: nn.Module | Mapping[str, nn.Module]) -> Iterator[SpanTimer]:
        timer = self.timer(models)
        timer.attach()
        self._cut_ns = self.clock.time_ns
        try:
            yield timer
        finally:
            timer.detach()
        assert self.errors == []

    def cut(self, timer: SpanTimer) -> Spans:
        spans = timer.cut()()
        assert spans is not None
        assert round(spans.wall_s * 1e9) == self.clock.time_ns - self._cut_ns
        self._cut_ns = self.clock.time_ns
        return spans

    def seconds(self, timer: SpanTimer) -> Seconds:
        """Of the step that ends here, whole seconds by module and direction; all phases together."""
        found: Seconds = {}
        for place, length in self.cut(timer).seconds.items():
            assert round(length) == round(length, 6)
            key = place.module, place.direction
            found[key] = found.get(key, 0) + round(length)
        return found


def times(
    outside: int = 0, forward: Mapping[str, int] | None = None, backward: Mapping[str, int] | None = None
) -> Seconds:
    """Whole seconds outside modules and of modules, as a timer finds them."""
    found = {("", FORWARD): outside} if outside else {}
    found |= {(module, FORWARD): seconds for module, seconds in (forward or {}).items()}
    return found | {(module, BACKWARD): seconds for module, seconds in (backward or {}).items()}


class Block(nn.Module):
    """1 s, a, 10 s, b, 100 s; backward twice that."""

    def __init__(self, ticking: Ticking, a: nn.Module, b: nn.Module) -> None:
        super().__init__()
        self.a, self.b = a, b
        self.clock = ticking.clock

    def forward(self, x):
        x = self.a(tick(x, self.clock, 1, 2))
        x = self.b(tick(x, self.clock, 10, 20))
        return tick(x, self.clock, 100, 200)


BLOCK_FORWARD = {"Block": 111, "a": 3, "b": 4}
BLOCK_BACKWARD = {"Block": 222, "a": 5, "b": 7}
"""Of ``block``, when it is the whole model."""


def block(ticking: Ticking) -> Block:
    return Block(ticking, Leaf(ticking.clock, 3, 5), Leaf(ticking.clock, 4, 7))


def x() -> torch.Tensor:
    return torch.ones(2, 3, requires_grad=True)
