"""Spans around compiled code: no graph break, no recompilation, the same results, and time where it can be told."""

from typing import Any

import pytest
import torch
from recorded_model import Net
from ticking import FORWARD, Ticking
from torch import nn
from torch._dynamo.utils import counters

from rooflight.records.record import Direction

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.usefixtures("fresh_dynamo")]

OUTSIDE = ("", FORWARD)


class Backend:
    """Each run of a compiled graph takes a second."""

    def __init__(self, ticking: Ticking) -> None:
        self.compiled = 0
        self.clock = ticking.clock

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any):
        self.compiled += 1

        def run(*args: Any) -> Any:
            self.clock.advance(1)
            return graph.forward(*args)

        return run


def x(rows: int = 2) -> torch.Tensor:
    return torch.ones(rows, 4)


def compiled(net: nn.Module, backend: Backend, how: str) -> nn.Module:
    if how == "wrapper":
        return torch.compile(net, backend=backend, fullgraph=True)
    net.compile(backend=backend, fullgraph=True)
    return net


def train(model: nn.Module, net: nn.Module) -> tuple[Any, ...]:
    results = []
    for _ in range(3):
        net.zero_grad()
        model(x()).sum().backward()
        results += [net.up.weight.grad.tolist(), net.down.bias.grad.tolist()]
    return tuple(results)


@pytest.mark.parametrize("warmed", [True, False])
@pytest.mark.parametrize("how", ["wrapper", "in place"])
def test_compiled_before_it_was_attached(ticking, how, warmed):
    net, backend = Net(), Backend(ticking)
    expected = train(net, net)
    model = compiled(net, backend, how)
    if warmed:
        model(x())
    call = net._compiled_call_impl
    with ticking.attached(model) as timer:
        assert timer.paths == ("Net",)  # the parts are in one with it
        assert train(model, net) == expected
        spans = ticking.cut(timer)
    assert {(p.module, p.direction): round(s) for p, s in spans.seconds.items()} == {("Net", FORWARD): 3}
    assert len(spans.events) == 1 + 3 + 3  # the phase, three calls with their shapes, three backward passes
    assert net._compiled_call_impl is call
    assert train(model, net) == expected
    assert backend.compiled == 1
    assert not counters["graph_break"]


@pytest.mark.parametrize("how", ["wrapper", "in place"])
def test_compiled_while_attached(ticking, how):
    net, backend = Net(), Backend(ticking)
    expected = train(net, net)
    with ticking.attached(net) as timer:
        model = compiled(net, backend, how)
        assert train(model, net) == expected
        # torch calls no hook of a module in compiled code: its time is that of whoever called it
        assert ticking.seconds(timer) == {OUTSIDE: 3}
        assert backend.compiled == 1
    assert train(model, net) == expected
    assert backend.compiled <= 2  # torch compiles anew when a module has other hooks than before
    assert not counters["graph_break"]


def test_attached_to_what_the_wrapper_wraps(ticking):
    net, backend = Net(), Backend(ticking)
    model = torch.compile(net, backend=backend, fullgraph=True)
    expected = train(model, net)
    for _ in range(3):
        with ticking.attached(net) as timer:
            assert train(model, net) == expected
            assert ticking.seconds(timer) == {OUTSIDE: 3}
        assert train(model, net) == expected
    assert backend.compiled <= 2
    assert not counters["graph_break"]


def test_a_compiled_part_is_timed_as_one(ticking):
    net, backend = nn.Sequential(Net(), nn.Linear(4, 4)), Backend(ticking)
    net[0].compile(backend=backend, fullgraph=True)
    with ticking.attached(net) as timer:
        assert timer.paths == ("Sequential", "0", "1")
        net(x()).sum().backward()
        seconds = ticking.seconds(timer)
    assert seconds == {("0", FORWARD): 1}
    assert net[0](x()).shape == (2, 4)


def test_a_compiled_module_that_raises_is_over(ticking):
    class Picky(Net):
        def forward(self, x):
            if x.shape[0] == 3:
                raise ValueError("three")
            return super().forward(x)

    net, backend = Picky(), Backend(ticking)
    net.compile(backend=backend)
    with ticking.attached(net) as timer:
        with pytest.raises(ValueError, match="three"):
            net(x(3))
        ticking.clock.advance(1000)
        net(x())
        assert ticking.seconds(timer) == {OUTSIDE: 1000, ("Picky", FORWARD): 1}


def test_a_compiled_function_around_a_module_keeps_its_graph_whole(ticking):
    net, backend = Net(), Backend(ticking)
    function = torch.compile(lambda x: net(x).relu(), backend=backend, fullgraph=True)
    with ticking.attached(net) as timer:
        for rows in (2, 2, 3, 4, 5):
            function(x(rows))
        assert backend.compiled == 2  # 2 rows, then any number of rows
        assert ticking.seconds(timer) == {OUTSIDE: 5}


def test_a_compiled_optimizer_is_seen(ticking):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with ticking.attached(net) as timer:
        step = torch.compile(optimizer.step, backend=Backend(ticking))
        for _ in range(3):
            net(x()).sum().backward()
            step()
        spans = ticking.cut(timer)
    assert spans.events.count("optimizer") == 3
    assert {(p.module, p.direction): round(s) for p, s in spans.seconds.items()} == {("", Direction.OPTIMIZER): 3}
