"""rooflight.hot: compiled when that pays, checked, timed and kept, or rolled back. Time is a clock that programs
turn.
"""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hot_programs import Compiler, Net, clock, loop_of, only, run, takes, x

import rooflight as rl
from rooflight.reporting.json import render_json
from rooflight.studies.compiling.hot import gain as hot_gain
from rooflight.studies.compiling.hot.detector import HotPath
from rooflight.studies.compiling.hot.state import CallKind, ExpectedGain

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.usefixtures("hot_loops")]


def test_a_module_is_compiled_once_it_has_run_for_as_long_as_compiling_takes() -> None:
    net, compiler = Net(), Compiler()
    loop = loop_of(net, compiler)
    run(net, 6)  # calls 3 and 4 show that time is at stake; 5 and 6 are watched
    assert only(loop).state == "hot"
    run(net, 6)  # of which one is recorded; 5 runs of 1 s pay for the 5 s that compiling is expected to take
    assert compiler.compiled == 0
    run(net, 1)
    assert (compiler.compiled, only(loop).state) == (1, "trying")
    run(net, 40)
    assert (compiler.compiled, only(loop).state, only(loop).speedup) == (1, "compiled", 4.0)
    assert loop.seen.settled
    assert loop.seen.checked == 2
    assert loop.seen.error == 0
    # called directly from now on
    before, calls = compiler.runs, loop.seen.calls
    run(net, 5)
    assert (compiler.runs, loop.seen.calls) == (before + 5, calls)


def test_the_total_is_that_of_eager_and_one_compilation_at_most() -> None:
    net = Net()
    loop_of(net, Compiler(run_s=3.0))
    begin = clock.now
    run(net, 200)
    # 5 s of compiling, 2 checks of 2 more runs each, and at least 6 slow runs that tell
    assert clock.now - begin <= 200 + 5 + 2 * 2 * 3 + 12 * 2


@pytest.mark.parametrize(
    ("backend", "more", "times", "state", "reason", "compiled"),
    [
        (Compiler(run_s=1.5), {}, 60, "eager", "compiled, it takes 1.50 times as long", 1),
        ("teleport", {}, 20, "eager", 'no backend "teleport" of torch.compile here', 0),
        # each run would gain 0.5 s of 1, and compiling takes 5 s: more than 10 runs must be left
        (Compiler(), {"expected_runs": 15}, 15, "eager", "compiling takes 5 s, and 10 runs would gain less", 0),
        (Compiler(), {"expected_runs": 16}, 16, "compiled", "", 1),
        (Compiler(), {"threshold": 10}, 9, "watching", "", 0),
    ],
)
def test_what_becomes_of_a_loop(backend, more, times, state, reason, compiled) -> None:
    net = Net()
    loop = loop_of(net, backend, **more)
    run(net, times)
    assert (only(loop).state, only(loop).reason, getattr(backend, "compiled", 0)) == (state, reason, compiled)
    runs = getattr(backend, "runs", 0)
    if state == "eager":  # it is not tried again
        run(net, 5)
        assert (getattr(backend, "compiled", 0), getattr(backend, "runs", 0)) == (compiled, runs)
        assert "forward" not in net.__dict__


def broken(graph: Any, inputs: Any) -> Any:
    raise RuntimeError("no C++ compiler found")


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        (Compiler(change=lambda out: out * 1.01),
         "compiled, it is not the same: result: the result differs: 8 of 8 elements"),
        (broken, "RuntimeError: no C++ compiler found"),
    ],
)  # fmt: skip
def test_wrong_results_and_errors_of_compilers_never_reach_the_program(backend: Any, reason: str) -> None:
    torch.manual_seed(0)
    net = Net().eval()
    expected = net(x()).detach()
    loop = loop_of(net, backend)
    with torch.no_grad():
        for _ in range(30):
            assert torch.equal(net(x()), expected)
    assert only(loop).state == "eager"
    assert only(loop).reason.startswith(reason)


class Doubled(torch.autograd.Function):
    """The same result, and twice its gradient."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return 2 * gradient


def test_wrong_gradients_are_found() -> None:
    net = Net()
    loop = loop_of(net, Compiler(change=Doubled.apply))
    for _ in range(20):
        net(x()).sum().backward()
    assert only(loop).reason.startswith("compiled, it is not the same: gradients: the result differs")


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_training_is_the_same_bit_by_bit(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks draw no random numbers of the program, and write none of its buffers."""

    def trained(make_hot: bool) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        net = Net()
        loop = loop_of(net, backend) if make_hot else None
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(25):
            optimizer.zero_grad()
            net(torch.randn(5, 4)).pow(2).sum().backward()
            optimizer.step()
        if loop is not None:
            assert loop.seen.checked == 2, only(loop).reason
            assert loop.compilation.plan is not None
            assert not loop.compilation.plan.backend.wrong
        return net.state_dict()

    ours, theirs = trained(True), trained(False)
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=0 if backend == "eager" else 1e-6)


def test_what_a_function_does_in_python_happens_once_per_call() -> None:
    calls: list[int] = []
    note = torch._dynamo.disable(calls.append)  # a graph break

    def function(value: torch.Tensor, number: int) -> torch.Tensor:
        takes(1.0)
        value = value.sin() + value
        note(number)
        return value.cos()

    loop = loop_of(function, Compiler())
    for _ in range(40):
        loop.entry.call(x(), 7)
    assert only(loop).state == "compiled"
    assert calls == [7] * 40


def test_code_that_torch_compiles_anew_for_each_call_goes_back_to_eager() -> None:
    calls: list[int] = []

    def function(value: torch.Tensor) -> torch.Tensor:
        takes(1.0)
        calls.append(1)  # Dynamo's code holds for a length of the list
        return value.sin() + value

    compiler = Compiler()
    loop = loop_of(function, compiler)
    for _ in range(100):
        loop.entry.call(x())
    assert len(calls) == 100
    assert (only(loop).state, compiler.compiled) == ("eager", 2)
    assert only(loop).reason.startswith("torch compiles it anew again and again: ")
    assert "len(" in only(loop).reason


def test_what_is_expected_to_gain_nothing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = ExpectedGain(speedup=0.9, compile_s=5.0, source="a model")
    monkeypatch.setattr(hot_gain, "expected_gain", lambda *_, **__: nothing)
    net, compiler = Net(), Compiler()
    loop = loop_of(net, compiler, expected_runs=10**6)
    run(net, 30)
    assert only(loop).reason == "no gain is expected: 0.90 times as fast (a model)"
    assert (compiler.compiled, loop.seen.settled) == (0, True)


@pytest.mark.parametrize(
    ("speedup", "high", "waits"),
    [(1.2, None, 1), (1.2, 1.3, 1), (1.0, None, 20), (1.05, 1.5, 1), (1.0, 1.01, 20), (1.0, 1.05**1.645, 1 / 0.1587)],
)
def test_what_is_not_expected_to_pay_waits_by_how_improbable_that_is(speedup, high, waits) -> None:
    kind = CallKind(state="hot", expected=ExpectedGain(speedup=speedup, compile_s=5.0, source="test", high=high))
    assert kind._waits()[0] == pytest.approx(5.0 * waits, rel=1e-3)  # 1.05 is one deviation above 1


def test_no_more_runs_than_the_threshold_are_not_observed() -> None:
    net = Net()
    forward = net.forward
    loop = loop_of(net, Compiler(), threshold=5, expected_runs=5)
    assert net.forward == forward
    run(net, 5)
    assert (loop.seen.calls, loop.seen.settled) == (0, True)
    assert [*rl.hot_report().notes] == ["Net: 5 runs are no more than hot_threshold: they are not observed"]


def test_a_stream_without_pattern_is_not_compiled() -> None:
    def function(value: torch.Tensor, choices: list[Any]) -> torch.Tensor:
        takes(1.0)
        for choice in choices:
            value = choice(value)
        return value

    random = __import__("random").Random(0)
    ops = [torch.sin, torch.cos, torch.exp, torch.abs, torch.neg]
    compiler = Compiler()
    loop = loop_of(function, compiler)
    for _ in range(400):
        loop.entry.call(x(), [random.choice(ops) for _ in range(8)])
    assert compiler.compiled == 0
    assert only(loop).state == "eager"
    assert only(loop).reason == "no pattern: 6 of 6 watched calls differ"
    assert loop.seen.settled


def test_the_same_operations_wired_differently_are_no_pattern() -> None:
    def function(value: torch.Tensor, first: bool) -> torch.Tensor:
        a, b = value.sin(), value.sin()
        return (a if first else b) + a

    from rooflight.studies.compiling.hot.gain import pattern_of

    patterns = []
    for first in (True, False, False):
        with rl.record() as recording:
            function(x(), first)
        patterns.append(pattern_of(recording.session))
    assert patterns[1] == patterns[2]
    assert patterns[0].operations == patterns[1].operations
    assert patterns[0].shape_free != patterns[1].shape_free


def test_train_and_eval_are_kinds_of_their_own() -> None:
    net, compiler = Net(), Compiler()
    loop = loop_of(net, compiler)
    for step in range(120):
        net.train(step % 3 > 0)
        run(net, 1)
    assert [kind.state for kind in loop.seen.kinds.values()] == ["compiled", "compiled"]
    assert compiler.compiled == 2
    assert loop.seen.settled


def test_sizes_and_numbers_that_change_are_compiled_once() -> None:
    def function(value: torch.Tensor, step: int) -> torch.Tensor:
        takes(1.0)
        return value.sin() * step

    net, sizes, numbers = Net().eval(), Compiler(), Compiler()
    by_size, by_number = loop_of(net, sizes), loop_of(function, numbers)
    for step in range(120):
        run(net, 1, rows=2 + step % 7)
        by_number.entry.call(x(), step + 2)
    assert (sizes.compiled, only(by_size).state, len(only(by_size).sizes)) == (1, "compiled", 7)
    assert (numbers.compiled, only(by_number).state) == (1, "compiled")


def test_errors_of_the_program_pass_and_the_loop_goes_on() -> None:
    net, compiler = Net(), Compiler()
    loop = loop_of(net, compiler)
    for step in range(60):
        if step % 4 == 1:
            with pytest.raises(RuntimeError, match="mat1 and mat2"), torch.no_grad():
                net(torch.ones(2, 5))
        else:
            run(net, 1)
    assert "compiled" in {kind.state for kind in loop.seen.kinds.values()}


def test_copies_of_a_hot_module_have_weights_of_their_own() -> None:
    net = Net().eval()
    loop = loop_of(net, Compiler())
    for times in (1, 50):  # watched, then compiled
        run(net, times)
        for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
            with torch.no_grad():
                other.down.bias += 1
                torch.testing.assert_close(other(x()), net(x()) + 1)
    assert loop.seen.settled
    assert type(net) is Net
    assert list(net.state_dict()) == list(Net().state_dict())


def test_hooks_run_once_per_call_and_on_hot_gets_the_pattern_once() -> None:
    net, calls, found = Net().eval(), [], list[HotPath]()
    net.register_forward_hook(lambda *_: calls.append(1))
    loop_of(net, Compiler(), on_hot=found.append)
    run(net, 50)
    assert len(calls) == 50
    (path,) = found
    assert (path.seen, path.iteration, path.first[0]) == (4, True, "aten::t")


def test_the_report_says_what_was_decided() -> None:
    assert "No loop was observed" in str(rl.hot_report())
    net, slow = Net(), Net()
    loop_of(net, Compiler())
    loop_of(slow, Compiler(run_s=2.0))
    run(net, 50)
    run(slow, 60)
    report = rl.hot_report()
    text = render_json(report)
    assert '"state": "compiled"' in text
    (first, second) = report.data
    assert (first.name, first.compiled, first.settled) == ("Net", "the whole call", True)
    (kind,) = first.kinds
    # the call that compiled: 5 s, 2 runs to compare, each eager and compiled, and the run itself
    assert (kind.eager_s, kind.compiled_s, kind.speedup) == (1.0, 0.25, 4.0)
    assert kind.break_even_runs == -(-kind.compile_s // 0.75)
    assert second.kinds[0].reason == "compiled, it takes 2.00 times as long"


def test_what_is_compiled_already_is_left_as_it_is() -> None:
    compiled = torch.compile(Net(), backend="eager")
    assert rl.hot(compiled) is compiled
    in_place = Net()
    in_place.compile(backend="eager")
    assert rl.hot(in_place) is in_place
    net = Net()
    assert rl.hot(rl.hot(net)) is net
    twice = rl.hot(takes)
    assert rl.hot(twice) is twice
    function = torch.compile(takes, backend="eager")
    assert rl.hot(function) is function
    assert rl.hot_report().data[0].note == "torch.compile was applied to it before"


async def coroutine() -> None: ...


def generator() -> Iterator[int]:
    yield 1


async def both() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (coroutine, "coroutine is async: pass the function"),
        (both, "both is async"),
        (generator, "generator is a generator: pass the function"),
        (Net, "this is a class: pass a function or a module object"),
        (3, "a function or a module"),
    ],
)
def test_what_cannot_be_hot(target: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rl.hot(target)


@pytest.mark.parametrize(
    "numbers", [{"hot_threshold": 0}, {"expected_runs": 2.5}, {"limit_s": 0}, {"hot_threshold": True}]
)
def test_numbers_that_are_none(numbers: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"whole number from 1|more than 0"):
        rl.hot(Net(), **numbers)


def test_a_function_that_returns_a_generator_stays_eager() -> None:
    hot = rl.hot(lambda *_: generator())
    for _ in range(20):
        assert list(hot(1)) == [1]
    assert "generator or coroutine" in rl.hot_report().data[0].kinds[0].reason


@pytest.mark.slow
def test_a_second_run_of_the_program_knows_what_the_first_found(tmp_path: Path) -> None:
    slow = Compiler(run_s=2.0)
    loop_of(Net(), slow)
    first, second = Net(), Net()
    loop = loop_of(first, slow)
    run(first, 60)
    assert only(loop).reason == "compiled, it takes 2.00 times as long"
    (kept,) = (tmp_path / "hot_paths").glob("*.json")
    again = loop_of(second, slow)
    run(second, 60)
    assert slow.compiled == 1
    assert only(again).reason == "an earlier run found: compiled, it takes 2.00 times as long"
    # files that this did not write, and answers to another question, are ignored
    for poison in (
        None,
        b"",
        b"\x80\x04",
        b'{"outcome": "compiled", "speedup": "os.system"}',
        b"[" * 60_000,
        b" " * 100_000,
    ):
        kept.unlink()
        os.mkfifo(kept) if poison is None else kept.write_bytes(poison)
        net = Net()
        run(net, 0)
        loop = loop_of(net, Compiler(run_s=2.0))
        run(net, 60)
        assert only(loop).reason == "compiled, it takes 2.00 times as long"


def test_what_was_measured_takes_the_place_of_what_is_predicted() -> None:
    net, compiler = Net(), Compiler(compile_s=50.0)
    loop = loop_of(net, compiler)
    run(net, 60)
    assert only(loop).state == "compiled"
    again = Net()
    loop = loop_of(again, compiler)
    run(again, 60)  # compiling took over 50 s, not the 5 s that were expected
    expected = only(loop).expected
    assert expected is not None
    assert (expected.source, expected.speedup) == ("an earlier run", 4.0)
    assert compiler.compiled == 2
    other = loop_of(Net(), compiler, mode="max-autotune")
    assert other.options.mode == "max-autotune"


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ROOFLIGHT_CACHE", str(tmp_path / "file"))
    net = Net()
    loop = loop_of(net, Compiler())
    run(net, 60)
    assert only(loop).state == "compiled"


def test_inductor_s_code_is_checked_with_the_random_numbers_of_eager_code() -> None:
    def function(value: torch.Tensor) -> torch.Tensor:
        takes(1.0)
        return torch.dropout(value.sin() * 2 + 1, 0.5, True)

    loop = loop_of(function, "inductor")
    for step in range(25):
        torch.manual_seed(step)
        out = loop.entry.call(x(8))
        torch.manual_seed(step)
        torch.testing.assert_close(out, torch.dropout(x(8).sin() * 2 + 1, 0.5, True))
    assert (only(loop).state, loop.seen.checked) == ("compiled", 2)
