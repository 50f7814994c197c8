"""Hot loops of several kinds of calls, calls that differ inside of objects (prompts, tokens, growing caches), sizes for
which torch was refused to compile, and trials: eager and compiled runs alternate until it is clear which are faster.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from hot_programs import Compiler, Net, clock, loop_of, only, run, takes, x
from torch import nn
from torch._dynamo.backends.registry import lookup_backend

from rooflight.studies.compiling.hot.backend import CHECKED_RUNS, CheckedBackend
from rooflight.studies.compiling.hot.calls import note_inside
from rooflight.studies.compiling.hot.state import CallKind

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.usefixtures("hot_loops")]


class Layer:
    def __init__(self, rows: int) -> None:
        self.held = x(rows)


class Cache:
    """Its tensors are out of sight of a call's sizes."""

    def __init__(self, rows: int = 2) -> None:
        self.layers = [Layer(rows), Layer(rows)]
        self.version = 1


class Growing(nn.Module):
    def forward(self, value: torch.Tensor, cache: Cache) -> torch.Tensor:
        takes(1.0)
        for layer in cache.layers:
            layer.held = torch.cat([layer.held, value])
            value = value + layer.held.sum(0)
        return value * cache.version


def sequences(net: nn.Module, count: int, steps: int = 7) -> None:
    with torch.no_grad():
        for _ in range(count):
            cache = Cache()
            for _ in range(steps):
                net(x(), cache)


def test_a_cache_that_grows_is_compiled_once_with_its_length_alone_dynamic() -> None:
    net, compiler = Growing(), Compiler()
    loop = loop_of(net, compiler)
    sequences(net, 10)
    assert (only(loop).state, only(loop).reason) == ("compiled", "")
    assert (compiler.compiled, loop.seen.recompiles, loop.seen.settled) == (1, 0, True)
    assert loop.compilation.plan is not None
    assert loop.compilation.plan.dynamic is None  # other sizes are static, as they are by hand


def test_sizes_that_first_change_in_a_trial_are_made_dynamic_by_dynamo() -> None:
    net, compiler = Growing(), Compiler()
    loop = loop_of(net, compiler)
    with torch.no_grad():
        while not compiler.compiled:
            net(x(), Cache())
        for rows in range(3, 40):
            net(x(), Cache(rows))
    assert (only(loop).state, only(loop).reason) == ("compiled", "")
    assert (compiler.compiled, loop.seen.recompiles, loop.seen.settled) == (2, 1, True)
    assert loop.seen.checked == 3  # the first graph ran once, the second one is checked twice


def test_several_graphs_of_a_call_are_compiled_again_together() -> None:
    note = torch._dynamo.disable(lambda: None)  # a graph break

    def function(value: torch.Tensor, cache: Cache) -> torch.Tensor:
        takes(1.0)
        value = value + cache.layers[0].held.sum(0)
        note()
        return value * cache.layers[1].held.sum(0)

    compiler = Compiler()
    loop = loop_of(function, compiler)
    while not compiler.compiled:
        loop.entry.call(x(), Cache())
    assert compiler.compiled == 2
    for rows in range(3, 40):
        loop.entry.call(x(), Cache(rows))
    assert (only(loop).state, only(loop).reason) == ("compiled", "")
    assert (compiler.compiled, loop.seen.recompiles) == (4, 1)


def test_code_that_is_compiled_again_is_no_fault_of_another_kind_in_its_trial() -> None:
    """A compiled prompt may leave strides in a cache for which the next token's call is compiled once more."""
    net, compiler = Growing(), Compiler()
    loop = loop_of(net, compiler)
    one, other = x(), x(3)[None, 0]  # sizes of 1 make another kind

    def call(value: torch.Tensor, version: int = 1) -> None:
        cache = Cache()
        cache.version = version
        with torch.no_grad():
            net(value, cache)

    for _ in range(60):
        call(one)
        if loop.seen.settled:
            break
    loop.watch_again()
    first = only(loop)
    assert first.state == "compiled"
    while compiler.compiled < 2:
        call(other)
    second = next(kind for kind in loop.seen.kinds.values() if kind is not first)
    assert second.state == "trying"
    clock.now += 1000.0  # compiling once more has been gained
    call(one, version=2)  # Dynamo's code holds for the other version
    for _ in range(30):
        call(one, version=2)
        call(other)
    assert (first.state, second.state, second.reason) == ("compiled", "compiled", "")
    assert (compiler.compiled, loop.seen.recompiles) == (3, 1)
    # two compilations of 5 s; checks: 2 compiled runs and 2 eager ones, and the runs themselves
    assert first.compile_s is not None
    assert 10 <= first.compile_s <= 14


class OneKind(Compiler):
    """Its code for a single row is slower than eager."""

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        single = any(isinstance(each, torch.Tensor) and each.shape[0] == 1 for each in inputs)
        self.run_s = 2.0 if single else 0.25
        run, seconds = super().__call__(graph, inputs), self.run_s

        def timed(*args: Any) -> Any:
            self.run_s = seconds
            return run(*args)

        return timed


def test_a_loop_of_compiled_and_eager_kinds_is_settled_and_each_runs_as_was_decided() -> None:
    net, compiler = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), OneKind()

    class Timed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            takes(1.0)
            return self.net(value)  # type: ignore[no-any-return]

    model = Timed()
    loop = loop_of(model, compiler)
    with torch.no_grad():
        for _ in range(80):
            model(x(2))
            model(x(1))
        assert [kind.state for kind in loop.seen.kinds.values()] == ["compiled", "eager"]
        assert loop.seen.settled
        runs = compiler.runs
        for _ in range(5):
            model(x(2))
            model(x(1))
        assert (compiler.runs, compiler.compiled) == (runs + 5, 2)
        model(x(2)[None])  # a kind that was never seen
        assert (len(loop.seen.kinds), loop.seen.settled) == (3, False)


def test_kinds_that_a_mode_tells_apart_run_as_was_decided_without_being_observed() -> None:
    class OneMode(Compiler):
        """Its code for training is slower than eager."""

        def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
            self.run_s = 2.0 if model.training else 0.25
            return super().__call__(graph, inputs)

    class Timed(nn.Module):
        def forward(self, value: torch.Tensor) -> torch.Tensor:
            takes(1.0)
            return value.relu() + int(self.training)

    def both() -> None:
        for training in (True, False):
            compiler.run_s = 2.0 if training else 0.25
            model.train(training)(x())

    model, compiler = Timed(), OneMode()
    loop = loop_of(model, compiler)
    with torch.no_grad():
        while not loop.seen.settled:
            both()
        assert [kind.state for kind in loop.seen.kinds.values()] == ["eager", "compiled"]
        runs, calls = compiler.runs, loop.seen.calls
        for _ in range(5):
            both()
        assert (compiler.runs, loop.seen.calls) == (runs + 5, calls)
        clock.now -= 1e6  # nothing was gained: no more is compiled
        model.eval()(x(3))
        assert (compiler.compiled, loop.seen.settled) == (2, False)
        both()
        assert (compiler.runs, loop.seen.calls) == (runs + 6, calls + 2)


def test_kinds_that_run_the_same_code_are_both_compiled() -> None:
    model, compiler = Rows(), Compiler()
    loop = loop_of(model, compiler)
    with torch.no_grad():
        while not loop.seen.settled:
            model.train(not model.training)(x())
    assert [(kind.state, kind.reason) for kind in loop.seen.kinds.values()] == [("compiled", "")] * 2
    assert compiler.compiled == 1


def frames(call: Any, *args: Any) -> int:
    """How many functions of Python a call runs."""
    found = 0

    def count(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal found
        found += event == "call"

    sys.setprofile(count)
    try:
        call(*args)
    finally:
        sys.setprofile(None)
    return found


def test_once_checked_a_call_runs_no_more_python_than_without_checks() -> None:
    aot_eager = lookup_backend("aot_eager")
    found = []
    for backend in (CheckedBackend(aot_eager), aot_eager):
        torch._dynamo.reset()
        compiled = torch.compile(Net().eval(), backend=backend)
        with torch.no_grad():
            for _ in range(CHECKED_RUNS + 1):
                compiled(x())
            found.append(frames(compiled, x()))
    assert found[0] == found[1]


def test_models_of_the_same_code_have_entries_of_their_own() -> None:
    """Dynamo keeps 8 of a function's, those of all its models together, and goes eager after that."""
    for _ in range(10):
        net, compiler = Growing(), Compiler()
        loop = loop_of(net, compiler)
        sequences(net, 8)
        assert (only(loop).state, compiler.compiled) == ("compiled", 1)


def test_shapes_inside_of_objects_are_noted_whatever_refers_to_what() -> None:
    kind, cache = CallKind(), Cache()
    cache.layers.append(cache)  # type: ignore[arg-type]
    for rows in (2, 2, 3):
        cache.layers[0].held = x(rows)
        note_inside(kind.inside, (Cache,), (x(), cache), {"more": [cache]})
    assert [sorted(shapes.values()) for shapes in kind.inside] == [[(2, 4), (2, 4)], [(2, 4), (3, 4)]]
    note_inside(kind.inside, (list, 1), ([x()],), {})  # no object
    assert len(kind.inside) == 2


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
