"""enable_hot_path_detection, and what a loop has compiled: modules that a function calls, blocks that are alike."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from hot_programs import Compiler, Net, clock, loop_of, only, run, takes, x
from torch import nn
from torch_state import torch_state

import rooflight as rl
from rooflight.compiling import HotPath, enable_hot_path_detection
from rooflight.studies.compiling.hot import detection as hot_everywhere
from rooflight.studies.compiling.hot.state import HotOptions

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.usefixtures("hot_loops")]


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """The backend of loops that the detection makes, which are timed by the clock of the tests."""
    backend = Compiler()
    monkeypatch.setattr(
        hot_everywhere,
        "HotOptions",
        lambda **options: HotOptions(**{**options, "clock": clock, "backend": backend}),
    )
    return backend


def test_the_page_s_training_loop_is_compiled_without_a_change(compiler: Compiler) -> None:
    net, loss = Net(), nn.MSELoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    found: list[HotPath] = []

    def train_step() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss(net(x()), torch.zeros(2, 4))
        value.backward()
        optimizer.step()
        return value.detach()

    before = torch_state()
    with enable_hot_path_detection(hot_threshold=10, on_hot=found.append):
        for step in range(60):
            train_step()
            assert compiler.compiled == 0 or step >= 10
        assert compiler.compiled >= 1
        report = rl.hot_report()
        assert [document.name for document in report.data] == ["Net", "MSELoss"]
        assert report.data[0].kinds[0].state == "compiled"
        assert found[0].operations > 5
    assert "forward" not in net.__dict__
    assert torch_state() == before


def test_a_second_detection_takes_the_place_of_the_first(compiler: Compiler) -> None:
    first = enable_hot_path_detection()
    with enable_hot_path_detection(hot_threshold=3):
        net = Net()
        run(net, 40)
    assert compiler.compiled == 1
    first.disable()
    assert not hot_everywhere._enabled


def test_it_stops_looking_once_nothing_new_is_called(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot_everywhere, "ENOUGH", 100)
    before = torch_state()
    net = Net()
    with enable_hot_path_detection(hot_threshold=10**6):
        run(net, 30)  # 4 modules each
        assert torch_state() == before


def test_it_keeps_no_module_alive(compiler: Compiler) -> None:
    with enable_hot_path_detection():
        net = Net()
        run(net, 3)
        gone = weakref.ref(net)
        del net
        gc.collect()
        assert gone() is None


@pytest.mark.parametrize("threshold", [0, "10", None, True])
def test_thresholds_that_are_none(threshold: Any) -> None:
    with pytest.raises(ValueError, match="whole number from 1"):
        enable_hot_path_detection(hot_threshold=threshold)
    assert not hot_everywhere._enabled


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        takes(0.25)
        return value + self.inner(value).relu()


class Deep(nn.Module):
    def __init__(self, count: int = 6) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(count))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            value = block(value)
        return value


def test_blocks_that_are_alike_are_compiled_once_for_all() -> None:
    net, compiler = Deep(), Compiler(run_s=0.1)
    expected = net(x())
    loop = loop_of(net, compiler)
    run(net, 60)
    assert (only(loop).state, loop.seen.what) == ("compiled", "6 × Block")
    assert compiler.compiled == 1
    assert "forward" not in net.__dict__
    assert all("forward" in block.__dict__ for block in net.blocks)
    runs = compiler.runs
    with torch.no_grad():
        assert torch.equal(net(x()), expected)
    assert compiler.runs == runs + 6
    loop.stop()
    assert not any("forward" in block.__dict__ for block in net.blocks)


class Headed(Deep):
    """Half of its operations are after the blocks."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = super().forward(value)
        for _ in range(24):
            value = value.sin()
        return value


@pytest.mark.parametrize(
    ("net", "left", "what"),
    [(Headed(), None, "6 × Block"), (Headed(), 10**6, "the whole call"), (Deep(3), None, "the whole call")],
)
def test_blocks_are_compiled_with_the_whole_where_they_are_few_or_the_runs_left_pay_for_it(net, left, what) -> None:
    loop = loop_of(net, Compiler(run_s=0.1), expected_runs=left)
    run(net, 30 if isinstance(net, Headed) else 60)
    # the whole: 5 s to compile, then twice as fast; blocks: 3.2 s, then a third faster; a run takes 1.5 s
    assert loop.seen.what == what


def test_a_function_that_trains_has_its_modules_compiled() -> None:
    net, compiler = Net(), Compiler()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        value = net(x()).sum()
        value.backward()
        optimizer.step()
        return value.detach()

    loop = loop_of(step, compiler)
    for _ in range(60):
        loop.entry.call()
    assert (only(loop).state, loop.seen.what) == ("compiled", "Net")
    assert compiler.compiled == 1


def test_a_function_that_trains_without_modules_says_what_to_pass() -> None:
    weight = torch.ones(4, 4, requires_grad=True)

    def step() -> None:
        takes(1.0)
        (x() @ weight).sum().backward()
        weight.grad = None

    compiler = Compiler()
    loop = loop_of(step, compiler)
    for _ in range(30):
        loop.entry.call()
    assert compiler.compiled == 0
    assert only(loop).reason == "it runs its own backward pass or optimizer, and calls no module that could be compiled"


def test_a_loop_that_calls_a_module_again_and_again_has_the_module_compiled() -> None:
    net, compiler = Net().eval(), Compiler()

    @torch.no_grad()
    def generate() -> torch.Tensor:
        value = x()
        for _ in range(4):
            value = net(value)
        return value

    loop = loop_of(generate, compiler)
    for _ in range(30):
        loop.entry.call()
    assert (loop.seen.what, compiler.compiled) == ("Net", 1)


def test_the_report_does_not_advise_what_was_called(compiler: Compiler) -> None:
    with enable_hot_path_detection():
        assert "enable_hot_path_detection" not in rl.hot_report().conclusion
    assert "enable_hot_path_detection" in rl.hot_report().conclusion


def test_what_is_not_compiled_yet_says_why() -> None:
    net = Net()
    loop = loop_of(net, Compiler())

    def why() -> str:
        return rl.hot_report().data[0].kinds[0].reason

    run(net, 2)
    assert why() == "called 2 times: it is looked at from call 3 on"
    run(net, 1)
    assert why().startswith("compiling takes seconds, so that shorter loops stay eager; it is watched once it has run")
    run(net, 3)
    assert (only(loop).state, "its gain is predicted once it has run for 2." in why()) == ("hot", True)
    run(net, 5)
    assert why().startswith("compiling takes 5 s, for runs 2.00 times as fast (test); it is compiled once it has run")
    run(net, 40)
    assert why() == ""
    assert only(loop).state == "compiled"
