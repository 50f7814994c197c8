"""Seconds of modules on a fake clock: exact, forward and backward, and in sum always the wall's."""

import contextlib
from typing import Any

import pytest
import torch
from recorded_model import built, in_thread
from ticking import (
    BACKWARD,
    BLOCK_BACKWARD,
    BLOCK_FORWARD,
    FORWARD,
    OPTIMIZER,
    Block,
    Leaf,
    Ticking,
    block,
    tick,
    times,
    x,
)
from torch import nn
from torch.utils.checkpoint import checkpoint

import rooflight as rl

OUTSIDE = ("", FORWARD)


def test_nested_modules_and_what_lies_between_them(ticking):
    clock = ticking.clock
    net = nn.Sequential(block(ticking), Leaf(clock, 11, 13))
    with ticking.attached(net) as timer:
        assert timer.paths == ("Sequential", "0", "0.a", "0.b", "1")
        clock.advance(1000)
        loss = tick(net(x()), clock, 2000, 4000).sum()
        clock.advance(8000)
        loss.backward()
        clock.advance(16000)
        seconds = ticking.seconds(timer)
    # the loss's backward is outside too: no module made it; 0 ticks 1 + 10 + 100 and 2 + 20 + 200
    assert seconds == times(
        1000 + 2000 + 4000 + 8000 + 16000,
        forward={"0": 111, "0.a": 3, "0.b": 4, "1": 11},
        backward={"0": 222, "0.a": 5, "0.b": 7, "1": 13},
    )


def test_each_step_begins_anew(ticking):
    net = block(ticking)
    with ticking.attached(net) as timer:
        first = [None, None]
        for step in range(2):
            net(x()).sum().backward()
            first[step] = ticking.seconds(timer)
        assert first[0] == first[1]
        assert ticking.seconds(timer) == {}


def test_what_runs_between_two_models_belongs_to_neither(ticking):
    clock = ticking.clock
    nets = {"encoder": Leaf(clock, 1, 2), "decoder": Leaf(clock, 3, 5)}
    with ticking.attached(nets) as timer:
        hidden = nets["encoder"](tick(x(), clock, 10, 20))
        nets["decoder"](tick(hidden, clock, 100, 200)).sum().backward()
        seconds = ticking.seconds(timer)
    # outside: forward 10 + 100, their backward 20 + 200
    assert seconds == times(110 + 220, {"encoder": 1, "decoder": 3}, {"encoder": 2, "decoder": 5})


def test_a_module_that_calls_itself(ticking):
    def forward(self, x, depth):
        if depth == 0:
            return self.leaf(x)
        return tick(self(x, depth - 1) + self(x, depth - 1), ticking.clock, 1, 2)

    net = built(forward, "Tree", leaf=Leaf(ticking.clock, 3, 5))
    with ticking.attached(net) as timer:
        net(x(), 2).sum().backward()
        seconds = ticking.seconds(timer)
    # two levels: 1 + 2 = 3 calls of Tree that tick, 4 leaves
    assert seconds == times(0, {"Tree": 3, "leaf": 12}, {"Tree": 6, "leaf": 20})


def test_a_module_called_twice_and_one_with_two_names(ticking):
    leaf = Leaf(ticking.clock, 3, 5)
    net = Block(ticking, leaf, leaf)
    with ticking.attached(nn.Sequential(net, leaf)) as timer:
        assert timer.paths == ("Sequential", "0", "0.a")  # the first name counts
        leaf(net(x())).sum().backward()
        seconds = ticking.seconds(timer)
    assert seconds == times(0, {"0": 111, "0.a": 9}, {"0": 222, "0.a": 15})


OUTPUTS = {
    "tuple": lambda x: (x, None),
    "list": lambda x: [None, x],
    "dict": lambda x: {"logits": x, "cache": object()},
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_modules_that_return_several_things(ticking, kind):
    def forward(self, x):
        return OUTPUTS[kind](self.leaf(x))

    def forward_outer(self, x):
        out = self.net(x)
        values = out.values() if isinstance(out, dict) else out
        return tick(next(value for value in values if isinstance(value, torch.Tensor)), ticking.clock, 1, 2)

    net = built(forward_outer, "Outer", net=built(forward, "Net", leaf=Leaf(ticking.clock, 3, 5)))
    with ticking.attached(net) as timer:
        net(x()).sum().backward()
        seconds = ticking.seconds(timer)
    assert seconds == times(0, {"Outer": 1, "net.leaf": 3}, {"Outer": 2, "net.leaf": 5})


@pytest.mark.parametrize("output", [None, 7, "text", (), {}, [[]], object()])
def test_modules_that_return_no_tensor(ticking, output):
    class Net(nn.Module):
        def forward(self, x):
            ticking.clock.advance(3)
            return output

    with ticking.attached(net := Net()) as timer:
        assert net(x()) is output
        assert ticking.seconds(timer) == {("Net", FORWARD): 3}


@pytest.mark.parametrize("given", [(), ("text",), (None,), ([1, 2],), (object(),)])
def test_modules_that_are_given_no_tensor(ticking, given):
    class Inner(nn.Module):
        def forward(self, *args):
            ticking.clock.advance(3)

    def forward(self, *args):
        self.inner(*args)

    with ticking.attached(net := built(forward, "Net", inner=Inner())) as timer:
        net(*given)
        assert ticking.seconds(timer) == {("inner", FORWARD): 3}


def test_an_argument_that_only_looks_like_a_tensor(ticking):
    class Odd:
        grad_fn = "not a node"

        def get_seq_length(self):
            raise RuntimeError("ask later")

    net = nn.Sequential(nn.Identity())
    odd = Odd()
    with ticking.attached(net):
        assert net(odd) is odd


def test_without_gradients_nothing_is_hooked(ticking):
    net = block(ticking)
    with ticking.attached(net) as timer:
        for mode in (torch.no_grad(), torch.inference_mode()):
            with mode:
                out = net(x())
            assert out._backward_hooks is None
            assert ticking.seconds(timer) == times(0, BLOCK_FORWARD)


def test_frozen_parameters(ticking):
    net = block(ticking)
    net.a.requires_grad_(requires_grad=False)
    with ticking.attached(net) as timer:
        net(x().detach()).sum().backward()
        seconds = ticking.seconds(timer)
    # a and what comes before it have no backward pass, nor has what lies between a and b
    assert seconds == times(0, BLOCK_FORWARD, {"Block": 200, "b": 7})


# -- running a part again ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_runs_its_modules_forward_again_in_the_backward_pass(ticking, reentrant):
    def forward(self, x):
        return self.head(checkpoint(self.inside, x, use_reentrant=reentrant))

    net = built(forward, "Net", inside=block(ticking), head=Leaf(ticking.clock, 1000, 3000))
    with ticking.attached(net) as timer:
        net(x()).sum().backward()
        ticking.clock.advance(20000)
        spans = ticking.cut(timer)
    seconds = {(place.module, place.direction): round(length) for place, length in spans.seconds.items()}
    # forward twice; the newer kind of checkpoint stops when it has what backward needs: the input of b's tick
    inside, b = (222, 8) if reentrant else (111 + 11, 4)
    assert seconds == times(
        20000,
        forward={"inside": inside, "inside.a": 6, "inside.b": b, "head": 1000},
        backward={"head": 3000, "inside": 222, "inside.a": 5, "inside.b": 7},
    )
    # what the checkpoint runs again is no call of the program's
    assert [event for event in spans.events if not isinstance(event, tuple)] == ["", "backward"]
    assert len(spans.events) == 3


# -- optimizers --------------------------------------------------------------------------------------------------------


class Slow(torch.optim.SGD):
    """Takes 7 s; ``inner`` steps inside, as sharded optimizers do."""

    def __init__(self, parameters: Any, ticking: Ticking, inner: torch.optim.Optimizer | None = None) -> None:
        super().__init__(parameters, lr=0.1)
        self.clock, self.inner, self.error = ticking.clock, inner, None

    def step(self, closure=None):
        loss = closure() if closure is not None else None
        self.clock.advance(7)
        if self.inner is not None:
            self.inner.step()
        if self.error is not None:
            raise self.error("stop")
        return loss


def test_an_optimizer_step(ticking):
    net = block(ticking)
    optimizer = Slow(net.parameters(), ticking)
    with ticking.attached(net) as timer:
        net(x()).sum().backward()
        optimizer.step()
        ticking.clock.advance(1000)
        spans = ticking.cut(timer)
    found = {(place.module, place.direction): round(length) for place, length in spans.seconds.items()}
    assert found["", OPTIMIZER] == 7
    assert found[OUTSIDE] == 1000
    assert spans.events[-1] == "optimizer"


def test_an_optimizer_inside_an_optimizer(ticking):
    net = block(ticking)
    optimizer = Slow(net.parameters(), ticking, inner=Slow(net.parameters(), ticking))
    with ticking.attached(net) as timer:
        optimizer.step()
        ticking.clock.advance(1000)
        assert ticking.seconds(timer) == {("", OPTIMIZER): 14, OUTSIDE: 1000}


def test_an_optimizer_step_that_raised_is_over_with_its_step(ticking):
    net = block(ticking)
    optimizer = Slow(net.parameters(), ticking)
    with ticking.attached(net) as timer:
        optimizer.error = ValueError
        with pytest.raises(ValueError, match="stop"):
            optimizer.step()
        ticking.seconds(timer)
        optimizer.error = None
        optimizer.step()
        ticking.clock.advance(1000)
        assert ticking.seconds(timer) == {("", OPTIMIZER): 7, OUTSIDE: 1000}


def test_a_closure_runs_its_modules_inside_the_optimizer(ticking):
    net = block(ticking)
    optimizer = Slow(net.parameters(), ticking)

    def closure():
        loss = tick(net(x()), ticking.clock, 10000, 20000).sum()
        loss.backward()
        return loss

    with ticking.attached(net) as timer:
        optimizer.step(closure)
        ticking.clock.advance(1000)
        seconds = ticking.seconds(timer)
    # what the closure computes is no part of the optimizer
    assert seconds == times(1000 + 30000, BLOCK_FORWARD, BLOCK_BACKWARD) | {("", OPTIMIZER): 7}


def test_an_optimizer_that_steps_inside_the_backward_pass(ticking):
    net = block(ticking)
    optimizers = {parameter: Slow([parameter], ticking) for parameter in net.parameters()}
    handles = [
        parameter.register_post_accumulate_grad_hook(lambda parameter: optimizers[parameter].step())
        for parameter in optimizers
    ]
    with ticking.attached(net) as timer:
        net(x()).sum().backward()
        ticking.clock.advance(1000)
        seconds = ticking.seconds(timer)
    for handle in handles:
        handle.remove()
    assert seconds["", OPTIMIZER] == 14
    assert seconds["Block", BACKWARD] == 222
    assert seconds[OUTSIDE] == 1000


# -- phases ------------------------------------------------------------------------------------------------------------


def test_phases_nested_raised_and_entered_inside_a_module(ticking):
    def forward(self, x):
        with rl.phase("inner"):
            x = self.leaf(tick(x, ticking.clock, 1, 2))
        return tick(x, ticking.clock, 10, 20)

    net = built(forward, "Net", leaf=Leaf(ticking.clock, 3, 5))
    with ticking.attached(net) as timer:
        with rl.phase("outer"):
            ticking.clock.advance(100)
            loss = net(x()).sum()
            with contextlib.suppress(ValueError), rl.phase("raising"):
                ticking.clock.advance(200)
                raise ValueError
            ticking.clock.advance(400)
        with rl.phase("backward"):
            loss.backward()
        ticking.clock.advance(1000)
        spans = ticking.cut(timer)
    found = {(place.phase, place.module, place.direction): round(s) for place, s in spans.seconds.items()}
    assert found == {
        ("outer", "", FORWARD): 500,
        ("outer", "Net", FORWARD): 10,
        ("inner", "Net", FORWARD): 1,
        ("inner", "leaf", FORWARD): 3,
        ("raising", "", FORWARD): 200,
        ("backward", "Net", BACKWARD): 22,
        ("backward", "leaf", BACKWARD): 5,
        ("", "", FORWARD): 1000,
    }
    assert [event for event in spans.events if isinstance(event, str)] == [
        "", "outer", "inner", "outer", "raising", "outer", "", "backward", "backward", "",
    ]  # fmt: skip


def test_a_phase_opened_in_one_module_and_closed_outside(ticking):
    phases = []

    class Net(nn.Module):
        def forward(self, x):
            phases.append(rl.phase("long").__enter__())
            ticking.clock.advance(1)
            return x

    with ticking.attached(net := Net()) as timer:
        net(x())
        ticking.clock.advance(10)
        phases.pop().__exit__()
        ticking.clock.advance(100)
        spans = ticking.cut(timer)
    found = {(place.phase, place.module): round(length) for place, length in spans.seconds.items()}
    assert found == {("long", "Net"): 1, ("long", ""): 10, ("", ""): 100}


def test_a_new_phase_every_step_does_not_fill_memory(ticking):
    with ticking.attached(block(ticking)) as timer:
        for step in range(600):
            with rl.phase(f"step {step}"):
                ticking.clock.advance(1)
        spans = ticking.cut(timer)
    names = {place.phase for place in spans.seconds}
    assert len(names) <= 257
    assert "(more phases)" in names
    assert round(spans.wall_s) == 600


def test_a_phase_of_another_thread_is_not_ours(ticking):
    def other():
        with rl.phase("elsewhere"):
            ticking.clock.advance(1)

    with ticking.attached(block(ticking)) as timer:
        in_thread(other)
        assert ticking.seconds(timer) == {OUTSIDE: 1}


# -- threads -----------------------------------------------------------------------------------------------------------


def test_another_thread_that_runs_the_model_is_not_timed(ticking):
    net = block(ticking)
    with ticking.attached(net) as timer:
        hidden = net.a(x())

        def other():
            net(x()).sum().backward()  # 111 + 3 + 4 forward, 222 + 5 + 7 backward
            hidden.sum().backward()  # of a graph the timed thread made: 5

        in_thread(other)
        assert ticking.seconds(timer) == {("a", FORWARD): 3, OUTSIDE: 352 + 5}
        net(x())
        assert ticking.seconds(timer) == times(0, BLOCK_FORWARD)
