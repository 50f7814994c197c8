"""Results of kernels that appear without an allocation are listed with their module."""

from collections import UserDict
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from outside_kernels import read
from outside_memory import DEVICE, Differentiable, Kernel, Twice, found, found_in, over_each_way, places
from recorded_model import recorded
from torch import nn
from torch.utils.checkpoint import checkpoint

import rooflight as rl
from rooflight.records.record import Direction
from rooflight.records.signature import WRITTEN_OUTSIDE

pytestmark = pytest.mark.usefixtures("small_heap")


@over_each_way
@pytest.mark.parametrize("memory", [False, True])
def test_a_layer_whose_result_appears_is_listed_with_its_size(wrap, memory):
    model = nn.Sequential(nn.Linear(4, 8), Kernel(wrap), nn.ReLU())
    session = recorded(lambda: model(torch.ones(3, 4)), model, memory=memory)
    (op,) = found_in(session)
    assert (op.module.path, op.module.class_name, op.direction) == ("1", "Kernel", Direction.FORWARD)
    assert op.signature.output_bytes == 3 * 8 * 4
    analysis = rl.analyze(session, DEVICE)
    (missing,) = analysis.coverage.uncosted
    assert (missing.reason, missing.calls, missing.modules) == ("written outside the dispatcher", 1, ("1",))
    assert missing.bytes == 96
    assert analysis.coverage.calls < 1
    assert analysis.coverage.bytes < 1


@over_each_way
def test_the_record_stands_before_the_reader_and_writes_what_it_reads(wrap):
    model = nn.Sequential(Kernel(wrap), nn.ReLU())
    x = torch.ones(3)
    records = [op for op in recorded(lambda: model(x), model).records if op.writes]
    assert [op.signature.name for op in records] == [WRITTEN_OUTSIDE, "aten::relu"]
    assert records[0].writes == records[1].reads


@over_each_way
def test_the_last_result_that_nothing_reads_is_found(wrap):
    model = nn.Sequential(nn.Linear(4, 4), Kernel(wrap))
    results: list[torch.Tensor] = []
    (op,) = found(lambda: results.append(model(torch.ones(2, 4))), model)
    assert op.module.path == "1"
    model = Kernel(wrap)
    x = torch.ones(2, 4)
    assert places(found(lambda: results.append(model(x)), model)) == [("Kernel", "forward")]
    assert places(found(lambda: model(x))) == [("Kernel", "forward")]


@over_each_way
@pytest.mark.parametrize("grad", [False, True])
def test_a_result_that_the_same_module_reads_is_found(wrap, grad):
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return wrap(2 * read(x)) * self.weight  # with grad, the product keeps it for its backward

    model = nn.Sequential(Layer(), Layer())
    with torch.set_grad_enabled(grad):
        assert [op.module.path for op in found(lambda: model(torch.ones(2, 4)), model)] == ["0", "1"]


@over_each_way
def test_each_call_counts_wherever_memory_is_used_again(wrap):
    model = nn.Sequential(*[Kernel(wrap) for _ in range(5)])
    ops = found(lambda: [model(torch.ones(3, 4)).sum() for _ in range(4)], model)
    assert [op.module.path for op in ops] == [*"01234"] * 4


@dataclass
class Result:
    value: torch.Tensor
    extra: object = None


@pytest.mark.parametrize(
    "give",
    [
        lambda y: (y, y),
        lambda y: [None, (1, y)],
        lambda y: {"a": {"b": y}},
        Result,
        lambda y: SimpleNamespace(logits=y),
        lambda y: UserDict(logits=y),
        lambda y: y.view(-1),
        lambda y: y[:1].unsqueeze(0),
        lambda y: (y, y.t()),
    ],
    ids=["tuple", "list", "dict", "dataclass", "namespace", "UserDict", "view", "slice", "twice"],
)
@over_each_way
def test_whatever_it_is_returned_in(give, wrap):
    outputs = []
    model = Kernel(wrap, give)
    assert len(found(lambda: outputs.append(model(torch.ones(3, 4))), model)) == 1


@over_each_way
def test_forward_and_backward_of_an_autograd_function(wrap):
    model = nn.Sequential(nn.Linear(4, 4), Differentiable(wrap), nn.Linear(4, 4))
    ops = found(lambda: model(torch.ones(2, 4)).sum().backward(), model)
    assert [op.direction.label for op in ops] == ["forward", "backward"]
    assert ops[0].module.path == "1"  # the gradient is seen where it is made, or where an op reads it


@over_each_way
def test_gradients_are_listed_in_backward_and_results_in_their_modules(wrap):
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return (Twice.apply(x, wrap) * self.weight).relu()

    model = nn.Sequential(nn.Linear(4, 4), Scaled(), nn.ReLU(), Scaled(), nn.Linear(4, 4))
    ops = found(lambda: [model(torch.ones(2, 4)).sum().backward() for _ in range(2)], model)
    assert [op.direction.label for op in ops] == ["forward", "forward", "backward", "backward"] * 2
    assert [op.module.path for op in ops if op.direction is Direction.FORWARD] == ["1", "3"] * 2
    out = model(torch.ones(2, 4))
    with rl.record(model) as recording:
        kept = model(torch.ones(2, 4))
    out.sum().backward()
    kept.sum().backward()  # after the recording
    assert places(found_in(recording.session)) == [("1", "forward"), ("3", "forward")]


@over_each_way
def test_a_gradient_that_becomes_that_of_a_leaf_and_is_read_by_the_optimizer(wrap):
    x = nn.Parameter(torch.ones(2, 4))
    model = nn.Sequential(Differentiable(wrap), nn.Linear(4, 4))
    optimizer = torch.optim.SGD([x], lr=0.1)

    def step() -> None:
        model(x).sum().backward()
        optimizer.step()

    ops = found(step, model)
    assert len(ops) == 2
    assert places(ops)[0] == ("0", "forward")


def test_outside_modules_what_is_made_is_data_and_gradients_are_found():
    x = torch.ones(3, requires_grad=True)
    ops = found(lambda: (Twice.apply(x, torch.from_numpy) * 3).sum().backward())
    assert places(ops) == [("", "backward")]


def test_a_checkpointed_kernel_runs_twice():
    model = nn.Sequential(nn.Linear(4, 4), Differentiable(torch.from_numpy), nn.Tanh())  # which keeps its result
    ops = found(lambda: checkpoint(model, torch.ones(2, 4), use_reentrant=False).sum().backward(), model)
    assert places(ops) == [("1", "forward"), ("1", "backward"), ("1", "backward")]


@over_each_way
def test_inside_inference_mode_and_through_a_compiled_model(wrap):
    model = nn.Sequential(nn.Linear(4, 4), Kernel(wrap), nn.Linear(4, 4))
    with torch.inference_mode():
        assert len(found(lambda: model(torch.ones(2, 4)), model)) == 1
    compiled = torch.compile(model, backend="eager")
    assert places(found(lambda: compiled(torch.ones(2, 4)), compiled)) == [("1", "forward")]


def test_with_times_and_while_the_recording_is_open():
    model = nn.Sequential(nn.Linear(4, 4), Kernel(torch.from_numpy), nn.ReLU())
    with rl.record(model, times=True, functions=True) as recording:
        for count in (1, 2):
            model(torch.ones(2, 4))
            assert len(found_in(recording.so_far())) == count
    session = recording.session
    assert len(found_in(session)) == 2
    nowhere = [index for index, op in enumerate(session.records) if np.isnan(session.measurement.op_s[index])]
    assert [session.record(index).signature.name for index in nowhere] == [WRITTEN_OUTSIDE] * 2


def test_memory_counts_from_when_it_is_made():
    model = nn.Sequential(Kernel(torch.from_numpy), nn.ReLU())
    session = recorded(lambda: model(torch.ones(2, 4)), model, memory=True)
    (place,) = [index for index, op in enumerate(session.records) if op.signature.name == WRITTEN_OUTSIDE]
    (storage,) = session.record(place).writes
    assert session.lifetimes.made[storage] == place
