"""Trials of a hot loop: eager and compiled runs alternate until it is clear which are faster."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hot_programs import Compiler, clock, loop_of, only, run, takes
from torch import nn

from rooflight.compiling.hot.state import CallKind

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.usefixtures("hot_loops")]


class Settling(Compiler):
    """A compiler whose code takes ``first_s`` in the ``first`` runs."""

    first, first_s = 0, 0.0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        run = super().__call__(graph, inputs)

        def settling(*args: Any) -> Any:
            if self.runs < self.first:
                clock.now += self.first_s - self.run_s
            return run(*args)

        return settling


class Short(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        takes(0.001)
        return x.relu() + 1


@pytest.mark.parametrize(("first", "first_s"), [(20, 0.0015), (6, 0.02)])
def test_first_runs_that_are_slower_do_not_roll_back_what_is_faster_later(first: int, first_s: float) -> None:
    """Compiling leaves caches cold, and processes that end: a few runs of a millisecond say nothing."""
    net, compiler = Short(), Settling(run_s=0.0005, compile_s=0.02)
    compiler.first, compiler.first_s = first, first_s
    loop = loop_of(net, compiler, check=False, expected_runs=10**7)
    run(net, 600)
    assert only(loop).state == "compiled"


@pytest.mark.parametrize("slow_s", [0.0011, 0.002])
def test_short_runs_that_stay_slower_are_rolled_back_after_200_ms(slow_s: float) -> None:
    net, compiler = Short(), Compiler(run_s=slow_s, compile_s=0.02)
    loop = loop_of(net, compiler, check=False, expected_runs=10**7)
    begin = clock.now
    run(net, 1000)
    assert only(loop).state == "eager"
    assert clock.now - begin <= 1.0 + 0.02 + 0.2 + 0.01


def test_the_shortest_runs_are_tried_128_times_on_each_side() -> None:
    kind = CallKind(state="trying", eager_s=[1e-6, 2e-6] * 64, compiled_s=[1.5e-6, 3e-6] * 64)
    assert kind.faster(3e-4) == "eager"
    kind.compiled_s.pop()
    assert kind.faster(3e-4) is None
    assert kind.faster(0.3) == "eager"
