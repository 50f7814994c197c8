"""The hooks of spans beside those of others, and what they leave behind."""

import copy
import gc
import io
import warnings
import weakref
from typing import Any

import pytest
import torch
from recorded_function import Calls
from recorded_model import built
from ticking import BACKWARD, BLOCK_BACKWARD, BLOCK_FORWARD, FORWARD, Leaf, Ticking, block, times, x
from torch import nn


def test_hooks_of_the_users_on_the_same_tensors_run_once_each_with_the_same_gradients(ticking):
    def train(net):
        seen = []
        inner = net.a.forward

        def forward(x):
            out = inner(x)
            out.register_hook(lambda grad: seen.append(("before ours", grad.tolist())))
            return out

        net.a.forward = forward
        hidden = net.a(x())
        hidden.register_hook(lambda grad: seen.append(("after ours", grad.tolist())))
        hidden.register_hook(lambda grad: grad * 3)
        handle = hidden.register_hook(lambda grad: seen.append(("removed", grad.tolist())))
        handle.remove()
        hidden.retain_grad()
        out = net.b(hidden)
        out.register_hook(lambda grad: seen.append(("output", grad.tolist())))
        out.grad_fn.register_hook(lambda inputs, outputs: seen.append(("node", outputs[0].tolist())))
        out.grad_fn.register_prehook(lambda outputs: seen.append(("node before", outputs[0].tolist())))
        out.mul_(1)
        out.register_hook(lambda grad: seen.append(("in place", grad.tolist())))
        out.sum().backward()
        del net.a.forward
        return seen, hidden.grad.tolist(), net.a.weight.grad.tolist(), net.b.weight.grad.tolist()

    expected = train(block(ticking))
    assert len(expected[0]) == 6
    net = block(ticking)
    with ticking.attached(net):
        assert train(net) == expected
    net.zero_grad()
    assert train(net) == expected


def test_full_backward_hooks_of_the_users(ticking):
    seen = []
    net = block(ticking)
    net.a.register_full_backward_pre_hook(lambda module, grads: seen.append("a before"))
    net.a.register_full_backward_hook(lambda module, inputs, outputs: seen.append("a after"))
    net.register_full_backward_hook(lambda module, inputs, outputs: seen.append("net after"))
    with ticking.attached(net) as timer:
        net(x()).sum().backward()
        seconds = ticking.seconds(timer)
    assert seen == ["a before", "a after", "net after"]
    assert seconds == times(0, BLOCK_FORWARD, BLOCK_BACKWARD)


def test_autograd_grad_of_inputs_and_of_an_inner_tensor(ticking):
    net = block(ticking)
    with ticking.attached(net) as timer:
        given = x()
        (gradient,) = torch.autograd.grad(net(given).sum(), [given])
        assert gradient.tolist() == [[32.0] * 3] * 2  # five ticks of 2 each
        seconds = ticking.seconds(timer)
        assert seconds[("Block", BACKWARD)] == 222
        hidden = net.a(given)
        (gradient,) = torch.autograd.grad(net.b(hidden).sum(), [hidden])
        assert gradient.tolist() == [[2.0] * 3] * 2
        assert ticking.seconds(timer) == {("a", FORWARD): 3, ("b", FORWARD): 4, ("b", BACKWARD): 7}


def test_a_second_backward_pass_through_the_first(ticking):
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))

    def penalty(net):
        net.zero_grad()
        given = x()
        (gradient,) = torch.autograd.grad(net(given).sum(), [given], create_graph=True)
        gradient.square().sum().backward()
        return [parameter.grad.tolist() if parameter.grad is not None else None for parameter in net.parameters()]

    expected = penalty(net)
    with ticking.attached(net) as timer:
        assert penalty(net) == expected
        spans = ticking.cut(timer)
    assert spans.events.count("backward") == 2


def test_backward_twice_over_a_kept_graph(ticking):
    net = block(ticking)
    with ticking.attached(net) as timer:
        loss = net(x()).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        ticking.clock.advance(1000)
        seconds = ticking.seconds(timer)
    assert seconds == times(1000, BLOCK_FORWARD, {module: 2 * seconds for module, seconds in BLOCK_BACKWARD.items()})


def test_a_hook_on_an_output_that_runs_a_backward_pass_of_its_own(ticking):
    """As engines that shard or recompute do."""
    clock = ticking.clock
    net, other = Leaf(clock, 1, 2), Leaf(clock, 10, 20)
    with ticking.attached({"net": net, "other": other}) as timer:

        @torch.enable_grad()
        def backward_of_another(_):
            other(x()).sum().backward()

        out = net(x())
        out.register_hook(backward_of_another)
        out.sum().backward()
        clock.advance(1000)
        seconds = ticking.seconds(timer)
    # nothing tells that the outer pass goes on: 2 s of net's are other's
    assert seconds == times(1000, {"other": 10, "net": 1}, {"other": 20 + 2})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_functional_transforms_run_as_without(ticking):
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    parameters = {name: parameter.detach() for name, parameter in net.named_parameters()}

    def loss(parameters, x):
        return torch.func.functional_call(net, parameters, (x,)).sum()

    batch = torch.arange(6.0).view(2, 3)
    run = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
    expected = run(parameters, batch)
    jacobian = torch.func.jacrev(net)(batch)
    forward_mode = torch.func.jvp(net, (batch,), (batch,))
    with ticking.attached(net):
        found = run(parameters, batch)
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        assert torch.equal(torch.func.jacrev(net)(batch), jacobian)
        assert all(map(torch.equal, torch.func.jvp(net, (batch,), (batch,)), forward_mode))


def test_nested_tensors_and_sparse_ones_pass(ticking):
    net = nn.Linear(3, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        strided = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])
        jagged = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged)
        with ticking.attached(net) as timer:
            for given in (strided, jagged, torch.eye(3).to_sparse()):
                net(given)
            assert len([hash(event) for event in ticking.cut(timer).events]) == 4


def test_a_symbolic_trace_is_not_disturbed(ticking):
    def forward(self, x):
        return torch.relu(self.inner(x * 2))

    net = built(forward, "Net", inner=Calls(lambda x: x + 1))
    expected = torch.fx.symbolic_trace(net).code
    with ticking.attached(net):
        assert torch.fx.symbolic_trace(net).code == expected


def test_detached_between_forward_and_backward(ticking):
    net = block(ticking)
    timer = ticking.timer(net)
    timer.attach()
    loss = net(x()).sum()
    timer.detach()
    assert not timer.attached
    loss.backward()
    assert net.a.weight.grad is not None
    assert ticking.errors == []
    timer.attach()
    net(x()).sum().backward()
    spans = timer.cut()()
    assert spans.events.count("backward") == 1
    timer.detach()
    timer.detach()


def test_attached_twice_is_refused_and_two_timers_live_together(ticking):
    net = block(ticking)
    with ticking.attached(net) as timer:
        with pytest.raises(RuntimeError, match="already attached"):
            timer.attach()
        second = Ticking()
        second.clock = ticking.clock
        with second.attached(net) as other:
            net(x()).sum().backward()
            seconds = second.seconds(other)
        assert ticking.seconds(timer) == seconds
        assert seconds["a", BACKWARD] == 5
        net(x()).sum().backward()
        assert ticking.seconds(timer) == seconds


def test_no_hook_is_left_on_any_module(ticking):
    net = block(ticking)
    kept = net.a.register_forward_hook(lambda *_: None, always_call=True)
    before = [state_of(module) for module in net.modules()]
    with ticking.attached(net):
        net(x())
        assert [state_of(module) for module in net.modules()] != before
    assert [state_of(module) for module in net.modules()] == before
    kept.remove()


def state_of(module: nn.Module) -> list[list[Any]]:
    return [list(value) for name, value in sorted(vars(module).items()) if "hooks" in name and value is not None]


def test_modules_deleted_added_and_replaced_while_attached(ticking):
    clock = ticking.clock
    net = nn.Sequential(Leaf(clock, 1), Leaf(clock, 2), Leaf(clock, 4))
    with ticking.attached(net) as timer:
        del net[1]
        net.append(Leaf(clock, 8))
        net[0] = Leaf(clock, 16)
        net(x())
        seconds = ticking.seconds(timer)
    # what the timer never met runs as a part of its caller; what moved keeps its name
    assert seconds == {("Sequential", FORWARD): 16 + 8, ("2", FORWARD): 4}
    assert all("hooks" not in name or not value for m in net.modules() for name, value in vars(m).items())


def test_a_copy_made_while_attached_is_timed_like_the_original_or_not_at_all(ticking):
    net = block(ticking)
    with ticking.attached(net) as timer:
        clone = copy.deepcopy(net)
        clone(x())
        ticking.cut(timer)
    out = clone(x())
    out.sum().backward()
    assert ticking.errors == []
    assert clone.a.weight.grad is not None


def test_states_and_outputs_are_saved_while_attached(ticking):
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    with ticking.attached(net):
        out = net(x())
        file = io.BytesIO()
        torch.save({"state": net.state_dict(), "out": out, "optimizer": None}, file)
        file.seek(0)
        loaded = torch.load(file)
        assert torch.equal(loaded["out"], out)
        assert loaded["out"]._backward_hooks is None or not loaded["out"]._backward_hooks
        assert list(net.state_dict()) == ["0.weight", "0.bias"]


def test_outputs_are_freed_as_without(ticking):
    net = block(ticking)
    with ticking.attached(net) as timer:
        gc.collect()
        gc.disable()  # an output must not wait for the collector: on a GPU that is memory
        try:
            out = net(x())
            out.sum().backward()
            timer.cut()
            freed = weakref.ref(out)
            del out
            assert freed() is None
        finally:
            gc.enable()


def test_an_error_inside_a_hook_goes_to_whoever_asked_and_not_to_the_program(ticking, monkeypatch):
    net = block(ticking)
    timer = ticking.timer(net)
    timer.attach()
    try:
        monkeypatch.setattr("rooflight.sources.capture.time.spans.look_of", lambda value: 1 / 0)
        out = net(x())
    finally:
        timer.detach()
    assert out.shape == (2, 3)
    assert {type(error) for error in ticking.errors} == {ZeroDivisionError}
