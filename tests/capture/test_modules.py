"""Which module and which direction an op belongs to, in forward, backward and recomputation."""

import pytest
import torch
from recorded_function import Calls
from recorded_model import built, in_thread, recorded
from torch import nn
from torch.utils.checkpoint import checkpoint

import rooflight as rl
from rooflight.records.record import Direction


def x() -> torch.Tensor:
    return torch.ones(2, 4)


def paths(session: rl.Session, name: str, direction: Direction | None = None) -> list[str]:
    return [
        op.module.path
        for op in session.records
        if op.signature.name == f"aten::{name}" and direction in (None, op.direction)
    ]


def test_backward_belongs_to_the_module_whose_forward_it_undoes() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 4)), nn.Softmax(dim=-1))
    session = recorded(lambda: net(x()).sum().backward(), net)
    assert paths(session, "addmm") == ["0", "1.1"]
    assert paths(session, "mm", Direction.BACKWARD) == ["1.1", "1.1", "0"]
    assert paths(session, "threshold_backward") == ["1.0"]
    assert paths(session, "_softmax_backward_data") == ["2"]
    assert {op.direction for op in session.records if op.signature.name == "aten::mm"} == {Direction.BACKWARD}
    assert paths(session, "sum", Direction.FORWARD) == [""]


def test_a_module_called_twice_and_a_shared_parameter() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.first(self.second(self.first(x).relu()))

    net = Net()
    with rl.record(net) as recording:
        net(x()).sum().backward()
        net(x()).sum().backward()
    session = recording.session
    assert paths(session, "addmm") == ["first", "second", "first"] * 2
    assert paths(session, "mm", Direction.BACKWARD) == ["first", "first", "second", "second", "first"] * 2
    assert paths(session, "relu") == ["Net"] * 2
    # the gradient of the shared weight is accumulated by the module that owns it first
    assert set(paths(session, "add_")) == {"first", "second"}


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_forwards_are_backward_in_their_modules(reentrant: bool) -> None:
    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=reentrant)
        return x

    net = built(forward, "Net", blocks=nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2)))
    session = recorded(lambda: net(x().requires_grad_()).sum().backward(), net)
    assert paths(session, "addmm", Direction.FORWARD) == ["blocks.0.0", "blocks.1.0"]
    assert paths(session, "addmm", Direction.BACKWARD) == ["blocks.1.0", "blocks.0.0"]
    assert paths(session, "mm") == ["blocks.1.0"] * 2 + ["blocks.0.0"] * 2
    assert paths(session, "tanh_backward") == ["blocks.1.1", "blocks.0.1"]


def test_custom_functions_hooks_and_autograd_grad() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value.mul(2)

        @staticmethod
        def backward(ctx, grad):
            return grad.mul(2)

    net = nn.Sequential(nn.Linear(4, 4), Calls(Double.apply), nn.Linear(4, 4))
    seen = []
    handle = net[0].register_full_backward_hook(lambda module, grads, outs: seen.append(outs[0].exp()))
    with rl.record(net) as recording:
        out = net(x().requires_grad_())
        torch.autograd.grad(out.sum(), list(net.parameters()), retain_graph=True)
        out.sum().backward()
    handle.remove()
    session = recording.session
    assert paths(session, "mul", Direction.FORWARD) == ["1"]
    assert paths(session, "mul", Direction.BACKWARD) == ["1", "1"]
    assert len(seen) == 1  # autograd.grad for parameters alone does not get as far as the hook's input
    assert {op.direction for op in session.records if op.signature.name == "aten::exp"} == {Direction.BACKWARD}


def test_double_backward() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    with rl.record(net) as recording:
        inputs = x().requires_grad_()
        (grad,) = torch.autograd.grad(net(inputs).sum(), inputs, create_graph=True)
        grad.pow(2).sum().backward()
    session = recording.session
    assert paths(session, "tanh_backward")[0] == "1"
    assert paths(session, "pow", Direction.FORWARD) == [""]
    assert all(op.direction is Direction.BACKWARD for op in session.records if op.signature.name == "aten::mm")


def test_backward_of_what_ran_before_the_recording_is_outside_all_modules() -> None:
    net = nn.Linear(4, 4)
    loss = net(x()).sum()
    session = recorded(loss.backward, net)
    assert paths(session, "mm") == [""]
    assert {op.direction for op in session.records} >= {Direction.BACKWARD}


def test_a_backward_in_another_thread_is_not_of_this_recording() -> None:
    net = nn.Linear(4, 4)
    with rl.record(net) as recording:
        loss = net(x()).sum()
        in_thread(loss.backward)
    assert paths(recording.session, "mm") == []
    assert net.weight.grad is not None


def test_without_a_model_the_outermost_module_names_itself() -> None:
    net = nn.Sequential(nn.Linear(4, 4))
    with rl.record() as recording:
        net(x())
        net[0](x())
        nn.Linear(4, 4)(x())
    assert paths(recording.session, "addmm") == ["Sequential.0", "Sequential.0", "Linear"]


def test_modules_made_inside_a_forward_are_named_after_their_maker() -> None:
    def forward(self, x):
        return nn.Linear(4, 4)(self.inner(x))

    net = built(forward, "Net", inner=nn.Linear(4, 4))
    session = recorded(lambda: net(x()), net)
    assert paths(session, "addmm") == ["inner", "Net.Linear"]


def test_optimizer_ops_are_outside_modules_and_in_their_direction() -> None:
    net = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
    with rl.record(net) as recording:
        net(x()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        net(x())
    steps = [op for op in recording.session.records if op.direction is Direction.OPTIMIZER]
    assert {op.module.path for op in steps} == {""}
    assert any("_foreach" in op.signature.name for op in steps)
    assert recording.session.record(len(recording.session) - 1).direction is Direction.FORWARD


def test_inference_mode_and_autocast_record_the_parts() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Dropout(0.5))
    with torch.no_grad(), rl.record(net) as plain:
        net(x())
    with torch.inference_mode(), rl.record(net) as inferred:
        net(x())
    names = [[op.signature.name for op in recording.session.records] for recording in (plain, inferred)]
    assert names[0] == names[1]
    assert paths(plain.session, "addmm") == paths(inferred.session, "addmm") == ["0"]
    with torch.autocast("cpu", dtype=torch.bfloat16), rl.record(net) as mixed:
        net(x())
    (addmm,) = [op for op in mixed.session.signatures if op.name == "aten::addmm"]
    assert {tensor.dtype for tensor in addmm.inputs} == {"bfloat16"}


def test_deterministic_algorithms_stay_as_they_were() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        with rl.record():
            torch.ones(4).scatter_add(0, torch.zeros(4, dtype=torch.int64), torch.ones(4))
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
