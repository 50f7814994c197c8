"""A function that takes arguments as a step: its inputs in turn, its gradients, and what it cannot be given."""

from __future__ import annotations

import pytest
import torch

from rooflight.sources.capture.record.recorder import record
from rooflight.sources.workloads.errors import TargetError
from rooflight.sources.workloads.targets import open_target
from rooflight.sources.workloads.user_step import Calls, differentiated

PROGRAM = """
import torch

def doubled(x):
    return 2 * x

def weighted(x, weight):
    return x * weight

linear = torch.nn.Linear(3, 2)

def get_inputs():
    return [torch.ones(3)]

def several():
    for number in (1.0, 2.0, 3.0):
        yield (torch.tensor(number),)

def with_weight():
    return torch.tensor(5.0), torch.tensor(7.0, requires_grad=True)

def nothing():
    yield from ()

def wrong():
    return {"x": 1}

def broken():
    raise KeyError("no data")

def step():
    return lambda: 1
"""


@pytest.fixture
def named(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return lambda name: f"{path}:{name}"


def test_inputs_are_taken_in_turn(named) -> None:
    step = open_target(named("doubled"), inputs="several")
    assert [step.run().item() for _ in range(4)] == [2, 4, 6, 2]
    assert open_target(named("doubled")).run().tolist() == [2, 2, 2]


def test_gradients_are_computed_and_none_is_written(named) -> None:
    step = open_target(named("weighted"), inputs="with_weight")
    result, gradients = step.run()
    assert result.item() == 35
    assert [each.item() for each in gradients] == [5]  # of x * weight by weight
    assert step.run()[1][0].item() == 5  # not 10: nothing was accumulated


def test_gradients_of_results_add_no_work_of_their_own(tmp_path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import torch\nw = torch.ones(3, requires_grad=True)\ndef f(): return w.exp()\n")
    step = open_target(f"{path}:f")
    step.run()
    with record() as recording:
        step.run()
    names = [each.signature.name for each in recording.session.records]
    # forward, and of backward the gradient times the result: no sum, no fill
    assert [name for name in names if name != "aten::detach"] == ["aten::exp", "aten::mul"]


def test_a_module_is_called_and_is_the_model(named) -> None:
    step = open_target(named("linear"))
    result, gradients = step.run()
    assert result.shape == (2,)
    assert {tuple(each.shape) for each in gradients} == {(2, 3), (2,)}
    assert [tuple(each.shape) for each in step.model.parameters()] == [(2, 3), (2,)]
    assert all(each.grad is None for each in step.model.parameters())


@pytest.mark.parametrize(
    ("name", "inputs", "told"),
    [
        ("doubled", "missing", "--inputs missing: the file of train.py:doubled has no such function"),
        ("doubled", "nothing", "train.py:doubled: nothing yields no inputs"),
        ("doubled", "wrong", "train.py:doubled: inputs are a tuple or list of arguments, not dict"),
        ("doubled", "broken", "broken raised KeyError: 'no data'"),
        ("step", "several", "--inputs several: train.py:step takes no arguments"),
        ("", "x", "--inputs x: only a function of your own"),
    ],
)
def test_inputs_that_cannot_be(named, name, inputs, told) -> None:
    with pytest.raises(TargetError, match=told):
        open_target(named(name) if name else "gpt2", inputs=inputs)


def test_arguments_with_defaults_are_left_out_unless_inputs_are_named(tmp_path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import torch\ndef f(x=torch.ones(2)): return 3 * x\ndef get_inputs(): return [torch.zeros(5)]\n")
    assert open_target(f"{path}:f").run().tolist() == [3, 3]
    assert open_target(f"{path}:f", inputs="get_inputs").run().tolist() == [0] * 5


def test_a_function_that_writes_gradients_gets_none_computed_again(tmp_path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\nw = torch.ones(2, requires_grad=True)\n"
        "def f():\n    loss = (2 * w).sum()\n    loss.backward()\n    return loss\n"
        "def g():\n    return (2 * w).sum()\n"
    )
    assert open_target(f"{path}:f").run().item() == 4  # and nothing beside it
    loss, (gradient,) = open_target(f"{path}:g").run()
    assert (loss.item(), gradient.tolist()) == (4, [2, 2])


def test_a_function_that_has_called_backward_itself() -> None:
    weight = torch.ones(2, requires_grad=True)
    loss = (weight * weight).sum()
    loss.backward()
    assert differentiated(loss) == ()
    with torch.no_grad():
        assert differentiated(weight * 2) == ()
    assert Calls(weight.detach, [()])().tolist() == [1, 1]
