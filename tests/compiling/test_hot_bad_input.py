"""Hot loops where things go wrong: compilations that hang, threads, forks, errors, and arguments of all kinds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from typing import Any

import pytest
import torch
from hot_programs import Compiler, Net, clock, loop_of, only, run, takes, x
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.exc import TensorifyScalarRestartAnalysis

from rooflight.studies.compiling.hot.backend import CheckedBackend, difference
from rooflight.studies.compiling.hot.calls import call_kind, tensors_of
from rooflight.studies.compiling.hot.time_box import within

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.usefixtures("hot_loops")]


def hangs(graph: Any, inputs: Any) -> Any:
    while True:
        time.sleep(0.01)


def test_a_compilation_that_hangs_ends_and_eager_goes_on() -> None:
    net = Net().eval()
    loop = loop_of(net, hangs, limit_s=0.2)
    expected = net(x())
    for _ in range(20):
        assert torch.equal(net(x()), expected)
    assert (only(loop).state, only(loop).reason) == ("eager", "compiling took longer than 0.2 s")
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def in_thread(work: Any) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join(120)
    return results[0]


@pytest.mark.parametrize("thread", [False, True])
def test_a_call_within_its_time_is_as_without_and_one_that_hangs_ends(thread: bool) -> None:
    def told(limit_s: float, call: Any) -> Any:
        try:
            return within(limit_s, call)
        except (TimeoutError, ValueError) as error:
            return str(error)

    run_it = in_thread if thread else lambda work: work()
    assert run_it(lambda: told(60.0, lambda: 7)) == 7
    assert "invalid literal" in run_it(lambda: told(60.0, lambda: int("x")))
    assert run_it(lambda: told(0.1, lambda: hangs(None, None))) == "took longer than 0.1 s"


def test_gradients_that_cancel_are_known_to_the_rounding_of_what_they_sum() -> None:
    """A bias before a batch norm has a gradient of 0 in exact numbers, and one of rounding in each order of summing."""
    torch.manual_seed(0)
    image, weight = torch.randn(8, 4, 12, 12), torch.randn(4, 4, 3, 3)
    bias = torch.zeros(4, requires_grad=True)

    def eager(x: torch.Tensor, b: torch.Tensor) -> Any:
        return (torch.batch_norm(torch.conv2d(x, weight, b), None, None, None, None, True, 0.1, 1e-5, False).relu(),)

    def reordered(x: torch.Tensor, b: torch.Tensor) -> Any:
        return (eager(x.flip(0), b)[0].flip(0),)

    def wrong(x: torch.Tensor, b: torch.Tensor) -> Any:
        return (eager(x, b)[0] + 0.01 * (b - b.detach()).view(4, 1, 1),)

    message, error = difference(eager, reordered, (image, bias))
    assert message == ""
    assert error is not None
    assert 0 < error < 1e-6  # of what is summed
    assert difference(eager, wrong, (image, bias))[0].startswith("gradients: the result differs")


class Off(torch.autograd.Function):
    """The same result, and a gradient that is off by the same share of its size everywhere."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, share: float) -> torch.Tensor:
        ctx.share = share
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad + ctx.share * grad.square().mean().sqrt(), None


def test_what_rounding_grows_to_in_later_ops_is_no_difference() -> None:
    """What a batch norm's backward rounds alike in a channel, as sums in another order do, an earlier norm sums."""
    torch.manual_seed(0)
    image, first, second = torch.randn(4, 3, 24, 24), torch.randn(8, 3, 3, 3), torch.randn(8, 8, 3, 3)
    bias = torch.zeros(8, requires_grad=True)

    def program(x: torch.Tensor, b: torch.Tensor, share: float) -> Any:
        def norm(y: torch.Tensor) -> torch.Tensor:
            return torch.batch_norm(y, None, None, None, None, True, 0.1, 1e-5, False).relu()

        y = norm(torch.conv2d(x, first, b)) + b.view(8, 1, 1)
        return (norm(Off.apply(torch.conv2d(y, second), share)).mean((2, 3)),)

    eager, reordered, mistaken = (partial(program, share=share) for share in (0.0, 1e-5, 1e-3))
    assert difference(eager, reordered, (image, bias))[0] == ""
    assert difference(eager, mistaken, (image, bias))[0].startswith("gradients: the result differs")


def test_sizes_of_0_and_1_make_kinds() -> None:
    """A language model's first call has the prompt's tokens, all others have one."""
    kinds = [call_kind((torch.ones(2, length),), {}, None)[0] for length in (0, 1, 2, 16)]
    assert len(set(kinds)) == 3
    assert kinds[2] == kinds[3]


def test_dynamo_may_capture_a_frame_once_more_by_what_the_backend_found() -> None:
    tries: list[int] = []

    def inner(graph: torch.fx.GraphModule, _inputs: list[Any]) -> Any:
        tries.append(1)
        if len(tries) == 1:
            raise TensorifyScalarRestartAnalysis
        return graph.forward

    backend = CheckedBackend(inner)
    assert torch.equal(torch.compile(lambda value: value.sin(), backend=backend)(x()), x().sin())
    assert (len(tries), backend.graphs, backend.failed) == (2, 1, "")


def test_a_time_out_in_a_thread_leaves_profilers_working() -> None:
    """An exception that stays announced to the interpreter hangs the next function that a profiler watches."""
    program = """if True:
        import sys, threading, time
        from rooflight.studies.compiling.hot.time_box import within

        def hang():
            try:
                within(0.05, lambda: [time.sleep(0.01) for _ in range(1000)])
            except TimeoutError as error:
                print(error)

        thread = threading.Thread(target=hang)
        thread.start()
        thread.join()
        sys.setprofile(lambda *_: None)
        (lambda: 1)()
        print("profiled")
    """
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert out.stdout.splitlines() == ["took longer than 0.05 s", "profiled"]


@pytest.mark.parametrize("fails", [False, True])
def test_the_alarm_is_taken_down_wherever_the_time_runs_out(fails: bool) -> None:
    """The timer rings after the call, before each line that takes it down."""
    program = f"""if True:
        import signal, sys
        from rooflight.studies.compiling.hot import time_box

        def call():
            lines.append(0)
            assert not {fails}

        def traced(frame, event, _argument):
            if frame.f_code is not time_box._with_signal.__code__:
                return None
            if event == "line" and lines:
                lines.append(frame.f_lineno)
                if len(lines) == last:
                    signal.raise_signal(signal.SIGALRM)
            return traced

        for last in range(2, 12):
            lines = []
            sys.settrace(traced)
            try:
                time_box.within(60.0, call)
            except (TimeoutError, AssertionError):
                pass
            sys.settrace(None)
            assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL, lines
            assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0), lines
    """
    subprocess.run([sys.executable, "-c", program], timeout=120, check=True)


def test_a_program_s_own_alarm_is_left_alone() -> None:
    rung: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    try:
        with pytest.raises(TimeoutError):
            within(0.1, lambda: hangs(None, None))
        assert not rung
        signal.raise_signal(signal.SIGALRM)
        assert rung == [1]
    finally:
        signal.signal(signal.SIGALRM, before)


def test_threads_that_call_at_once_get_right_results() -> None:
    net, compiler = Net().eval(), Compiler()
    expected = net(x())
    loop = loop_of(net, compiler)
    wrong: list[torch.Tensor] = []

    def work() -> None:
        with torch.no_grad():
            for _ in range(40):
                out = net(x())
                if not torch.equal(out, expected):
                    wrong.append(out)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run(net, 40)
    assert not wrong
    assert compiler.compiled == 1
    assert only(loop).state == "compiled"


def test_a_function_that_calls_itself_is_observed_once() -> None:
    loop: Any = None

    def function(value: torch.Tensor, depth: int) -> torch.Tensor:
        takes(1.0)
        return value.sin() if depth == 0 else loop.entry.call(value, depth - 1)

    loop = loop_of(function, Compiler(), threshold=10**6)
    for _ in range(5):
        loop.entry.call(x(), 3)
    assert loop.seen.calls == 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_child_goes_on_while_its_parent_was_in_a_call() -> None:
    net = Net().eval()
    loop = loop_of(net, Compiler())
    loop._busy.acquire()  # a call of another thread, which the child does not have
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)  # the threads of OpenMP are the parent's: a child that calls them waits for ever
            run(net, 4)
            os._exit(0 if loop.seen.calls == 4 else 1)
        finally:
            os._exit(2)
    loop._busy.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_interrupts_and_exits_pass_and_leave_the_loop_usable() -> None:
    interrupt: list[type[BaseException]] = []

    def function(value: torch.Tensor) -> torch.Tensor:
        takes(1.0)
        if interrupt:
            raise interrupt.pop()
        return value.sin()

    loop = loop_of(function, Compiler())
    for step in range(30):
        if step % 5 == 2:
            interrupt.append(KeyboardInterrupt if step % 2 else SystemExit)
            with pytest.raises((KeyboardInterrupt, SystemExit)):
                loop.entry.call(x())
        else:
            assert torch.equal(loop.entry.call(x()), x().sin())
    assert not loop._busy.locked()


def test_memory_is_bounded_over_any_stream_of_calls() -> None:
    loop = loop_of(lambda value, *more: value, Compiler(), threshold=10**6)
    for number in range(3000):
        loop.entry.call(torch.empty(number % 100, 1), *(["x"] * (number % 50)), f"name {number}")
    assert len(loop.seen.kinds) <= 32
    assert all(len(kind.sizes) <= 16 and len(kind.eager_s) <= 32 for kind in loop.seen.kinds.values())


class Odd:
    """An object that compares with nothing."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("do not compare me")

    __hash__ = None  # type: ignore[assignment]


def test_arguments_of_all_kinds() -> None:
    nan = float("nan")
    for args in [(Odd(),), ([Odd(), {1: Odd()}],), (nan,), ({"a": x()},), ((x(), [x(), (x(),)]),), (torch.empty(0),)]:
        first, second = call_kind(args, {}, None), call_kind(args, {}, None)
        assert first[0] == second[0]
        assert len(tensors_of(args, {})) == len(first[1])


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.just(torch.ones(2, 3))),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=2), inner, max_size=3)),
    max_leaves=8,
)


@settings(deadline=None, max_examples=30)
@given(st.lists(values, max_size=3), st.dictionaries(st.text("ab", min_size=1, max_size=2), values, max_size=2))
def test_the_tensors_of_a_call_are_at_the_places_of_its_sizes(args: list[Any], kwargs: dict[str, Any]) -> None:
    _, sizes = call_kind(tuple(args), kwargs, None)
    tensors = tensors_of(tuple(args), kwargs)
    assert len(sizes) == len(tensors)
    for size, tensor in zip(sizes, tensors, strict=True):
        assert isinstance(size, tuple) == (tensor is not None)


def test_a_difference_is_found_on_copies_that_share_memory_as_the_originals_do() -> None:
    base = torch.arange(6.0)

    def writes(first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor]:
        first.add_(1)  # second sees it
        return (second * 2,)

    def wrong(first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor]:
        out = second * 2
        first.add_(1)
        return (out,)

    assert difference(writes, writes, [base[:4], base[2:]])[0] == ""
    assert difference(writes, wrong, [base[:4], base[2:]])[0].startswith("result: the result differs")
    assert torch.equal(base, torch.arange(6.0))


def test_a_difference_in_what_is_written_or_drawn_is_found() -> None:
    def noise(value: torch.Tensor) -> tuple[torch.Tensor]:
        return (value + torch.rand(4),)

    def forgets(value: torch.Tensor) -> tuple[torch.Tensor]:
        return (value * 1,)

    def keeps(value: torch.Tensor) -> tuple[torch.Tensor]:
        value.mul_(2)
        return (value / 2,)

    state = torch.get_rng_state()
    assert difference(noise, noise, [torch.ones(4)]) == ("", 0.0)
    assert torch.equal(torch.get_rng_state(), state)
    assert difference(keeps, forgets, [torch.ones(4)])[0].startswith("inputs it writes")


def test_views_with_strides_of_zero_and_leaves_that_are_written() -> None:
    expanded = torch.ones(1, 4).expand(3, 4)
    assert difference(lambda v: (v + 1,), lambda v: (v + 1,), [expanded])[0] == ""
    made = torch.ones(4, requires_grad=True) * 2

    def writes(value: torch.Tensor) -> tuple[torch.Tensor]:
        return (value.mul_(3),)

    assert difference(writes, writes, [made])[0] == ""
    assert clock() >= 0
