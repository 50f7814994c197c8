"""Programs for the tests of hot loops: time is a clock that they turn, and compilers do as they are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from rooflight.studies.compiling.hot.detection import attached
from rooflight.studies.compiling.hot.loop import HotLoop
from rooflight.studies.compiling.hot.state import CallKind, HotOptions

Change = Callable[[torch.Tensor], torch.Tensor]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


clock = Clock()


def takes(seconds: float) -> None:
    """Eager code takes so long; Dynamo leaves this call out of what it compiles."""
    if not torch.compiler.is_compiling():
        clock.now += seconds


class Compiler:
    """A backend whose code takes ``run_s``, and returns what ``change`` makes of the right result."""

    def __init__(self, run_s: float = 0.25, compile_s: float = 5.0, change: Change | None = None) -> None:
        self.run_s, self.compile_s, self.change = run_s, compile_s, change
        self.compiled = self.runs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.compiled += 1
        clock.now += self.compile_s

        def run(*args: Any) -> Any:
            self.runs += 1
            clock.now += self.run_s
            out = graph.forward(*args)
            return out if self.change is None else tuple(self.change(each) for each in out)

        return run


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        takes(1.0)
        return self.down(torch.dropout(self.norm(self.up(x)).relu(), 0.5, self.training))


def loop_of(target: Any, backend: Any, threshold: int = 3, **more: Any) -> HotLoop:
    loop = attached(target, HotOptions(backend=backend, hot_threshold=threshold, clock=clock, **more))
    assert loop is not None
    return loop


def only(loop: HotLoop) -> CallKind:
    (kind,) = loop.seen.kinds.values()
    return kind


def x(rows: int = 2) -> torch.Tensor:
    return torch.arange(rows * 4.0).reshape(rows, 4)


@torch.no_grad()
def run(net: nn.Module, times: int, rows: int = 2) -> None:
    for _ in range(times):
        net(x(rows))
