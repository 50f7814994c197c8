"""Sizes for which torch was refused to compile: they run eagerly, and may be compiled later on purpose."""

from __future__ import annotations

import pytest
import torch
from hot_programs import Compiler, loop_of, only, takes, x
from torch import nn

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.usefixtures("hot_loops")]


class Rows(nn.Module):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        takes(1.0)
        return value.relu() + value.sum(0)


def test_a_size_that_was_refused_may_be_compiled_later_and_those_before_stay_compiled() -> None:
    net, compiler = Rows(), Compiler()
    loop = loop_of(net, compiler)
    with torch.no_grad():
        while not loop.seen.settled:
            net(x(2))
        assert compiler.compiled == 1
        assert net(x(5)).shape == (5, 4)  # compiling has gained nothing yet: it is refused
        assert loop.compilation.plan is not None
        assert (loop.compilation.plan.backend.refused, compiler.compiled, loop.seen.settled) == (1, 1, False)
        runs = compiler.runs
        net(x(2))  # Dynamo prefers the code that it made last, here for any number of rows
        assert compiler.runs == runs + 1
        for _ in range(40):
            net(x(5))
        assert (only(loop).state, only(loop).reason, compiler.compiled) == ("compiled", "", 2)
        runs = compiler.runs
        for rows in (2, 5, 7, 2, 5):
            net(x(rows))
        assert (compiler.runs, compiler.compiled, loop.compilation.plan.backend.refused) == (runs + 5, 2, 1)


def test_a_size_that_was_refused_and_does_not_return_is_compiled_no_more() -> None:
    net, compiler = Rows(), Compiler()
    loop = loop_of(net, compiler)
    with torch.no_grad():
        while not loop.seen.settled:
            net(x(2))
        net(x(5))
        for _ in range(40):
            net(x(2))
    assert (only(loop).state, compiler.compiled, loop.seen.settled) == ("compiled", 1, True)
    assert compiler.runs >= 40
