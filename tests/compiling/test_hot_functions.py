"""Loops of plain functions: found by looks at the thread that runs them, and treated as modules are."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch
from hot_programs import Compiler, Net, clock, takes, x

import rooflight as rl
from rooflight.compiling import HotPathDetection
from rooflight.studies.compiling.hot import functions
from rooflight.studies.compiling.hot.detection import enable_hot_path_detection
from rooflight.studies.compiling.hot.state import TRAINS

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.usefixtures("hot_loops")]


@pytest.fixture
def compiler() -> Compiler:
    return Compiler()


@pytest.fixture
def detection(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> Iterator[HotPathDetection]:
    """One whose looks are made by the program, so that they are the same each time."""
    monkeypatch.setattr(functions, "_EVERY_S", 1e4)
    with enable_hot_path_detection(hot_threshold=3, backend=compiler, clock=clock) as found:
        yield found


@torch._dynamo.disable
def look(detection: HotPathDetection) -> None:
    detection.finder.look(sys._getframe(1))


def test_a_function_that_a_loop_calls_is_found_compiled_and_given_back(detection, compiler) -> None:
    weight = torch.ones(4, 4)

    def step(value: torch.Tensor, add: float = 1.0, *, times: float = 2.0) -> torch.Tensor:
        takes(1.0)
        look(detection)
        return (value @ weight) * times + add

    held, code = [step], step.__code__

    def train(steps: int) -> None:
        for _ in range(steps):
            assert torch.equal(held[0](x(), times=3.0), (x() @ weight) * 3.0 + 1.0)

    train(functions.ENOUGH - 5)
    assert rl.hot_report().data == ()
    train(80)
    (found,) = rl.hot_report().data
    assert (found.name, found.kinds[0].state, found.checked) == (
        step.__qualname__.replace("<locals>.", ""),
        "compiled",
        2,
    )
    assert compiler.compiled >= 1
    assert found.note.startswith(
        f"a loop at test_hot_functions.py:{train.__code__.co_firstlineno + 2}, in code that takes about "
    )
    assert step.__code__ is not code
    detection.disable()
    assert step.__code__ is code
    assert not [name for name in globals() if name.startswith("__rooflight")]
    assert torch.equal(step(x()), (x() @ weight) * 2.0 + 1.0)


def test_of_a_function_that_trains_without_modules_what_it_calls_is_compiled(detection, compiler) -> None:
    weight = torch.ones(4, 4, requires_grad=True)

    def loss_of(weight: torch.Tensor) -> torch.Tensor:
        takes(1.0)
        look(detection)
        return (x() @ weight).square().sum()

    def step() -> None:
        torch.autograd.grad(loss_of(weight), weight)

    for _ in range(160):
        step()
    whole, part = rl.hot_report().data
    assert [whole.kinds[0].reason, part.kinds[0].state] == [TRAINS, "compiled"]
    assert part.name.endswith(".loss_of")
    assert compiler.compiled >= 1


@pytest.mark.parametrize("of_torch", [True, False])
def test_a_loop_is_found_by_the_tensors_of_its_function_where_no_file_names_torch(detection, of_torch: bool) -> None:
    names = {"look": look, "detection": detection}
    code = """
def made(value):
    def step():
        look(detection)
        return value * 2
    return step

def train(step):
    for _ in range(40):
        step()
"""
    exec(code, names)
    names["train"](names["made"](x() if of_torch else 1.0))
    assert [found.name for found in rl.hot_report().data] == (["made.step"] if of_torch else [])


def test_a_loop_whose_body_is_no_function_is_reported(detection, compiler) -> None:
    value = x()
    for _ in range(2 * functions.ENOUGH):
        detection.finder.look(sys._getframe())
        value = value.sin()
        detection.finder.look(sys._getframe())
    (found,) = rl.hot_report().data
    assert found.kinds == ()
    assert "its body stands in the loop itself: put it into a function, with @rl.hot above" in found.note


def test_functions_with_modules_and_functions_called_in_turn_are_left_alone(detection) -> None:
    net = Net()
    hook = net.norm.register_forward_hook(lambda *_: detection.finder.look(sys._getframe()))

    def step() -> None:
        net(x())

    code = step.__code__
    for _ in range(2 * functions.ENOUGH):
        step()
    hook.remove()
    assert step.__code__ is code
    assert [found.name for found in rl.hot_report().data] == ["Net"]


@pytest.mark.parametrize("count", [1, 2])
def test_what_cannot_be_exchanged_says_what_to_do(detection, count: int) -> None:
    def made() -> object:
        def step() -> Iterator[torch.Tensor] | torch.Tensor:
            look(detection)
            return x()

        def several() -> Iterator[torch.Tensor]:
            look(detection)
            yield x()

        return several if count == 1 else step

    steps = [made() for _ in range(count)]
    for _ in range(2 * functions.ENOUGH):
        list(steps[0]())
    (found,) = rl.hot_report().data
    assert ("a generator or coroutine" if count == 1 else "2 functions have its code") in found.note
