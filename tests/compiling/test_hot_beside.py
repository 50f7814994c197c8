"""Hot loops that are compiled beside the program, by a real worker process; and what happens where it cannot."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hot_programs import Compiler, Net, loop_of, only, run, takes, x
from torch import nn
from torch._dynamo.utils import counters

import rooflight as rl
from rooflight.compiling.beside import worker
from rooflight.compiling.hot import loop as hot_loop
from rooflight.compiling.hot.gain import ExpectedGain
from rooflight.compiling.hot.loop import HotLoop
from rooflight.compiling.hot.result import CallKind, HotOptions
from rooflight.compiling.hot_beside import IN_CALLS, START_S, cost_s

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.usefixtures("hot_loops")]
_PATIENCE_S = 200.0


@pytest.fixture(autouse=True)
def no_worker_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setattr(worker, "_nice", 1)  # other tests run meanwhile, and would not let it
    yield
    worker.stop("the test ended")


class Gelu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        takes(1.0)
        return self.down(nn.functional.gelu(self.up(value)))


def until(condition: Callable[[], bool], meanwhile: Callable[[], object] = lambda: None) -> None:
    end = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        meanwhile()
        time.sleep(0.05)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"  # its new parent is slow
    except FileNotFoundError:
        return True


def captured(net: nn.Module, **more: Any) -> HotLoop:
    """A loop whose graphs were just handed to the worker; what compiles in the call is quick."""
    loop = loop_of(net, "inductor", background=True, **more)
    until(lambda: any(kind.beside is not None for kind in loop.seen.kinds.values()), lambda: run(net, 1))
    assert loop.plan is not None
    loop.plan.backend._inner = lambda graph, _inputs: graph.forward
    return loop


def test_training_goes_on_eagerly_until_the_worker_has_compiled_forward_and_backward() -> None:
    net, like = Gelu(), Gelu()
    like.load_state_dict(net.state_dict())
    loop = loop_of(net, "inductor", background=True)

    def step() -> None:
        net(x()).sum().backward()
        like(x()).sum().backward()
        for ours, theirs in zip(net.parameters(), like.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-3)

    until(lambda: bool(loop.seen.kinds) and only(loop).beside is not None, step)
    kind, beside = only(loop), only(loop).beside
    assert beside is not None
    counters.clear()
    until(lambda: beside.done, step)
    assert (beside.failed, kind.state) == ("", "hot")
    assert beside.calls > 0
    assert not counters["frames"]  # meanwhile nothing went through Dynamo
    assert "calls ran eagerly meanwhile" in rl.hot_report().data[0].kinds[0].beside

    until(lambda: kind.decided, step)
    assert (counters["inductor"]["fxgraph_cache_miss"], counters["inductor"]["fxgraph_cache_hit"]) == (0, 2)
    assert loop.seen.checked == 2
    (document,) = rl.hot_report().data[0].kinds
    assert document.beside.startswith("compiled beside the loop in ")
    assert document.beside_calls == beside.calls
    assert document.beside_s > 0
    pid = worker.pid
    assert pid is not None
    assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0) + 1
    worker.stop("the test ended")
    assert is_gone(pid)


def test_a_worker_that_is_killed_leaves_compiling_to_the_call() -> None:
    net = Net().eval()
    loop = captured(net)
    until(lambda: worker.pid is not None)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    beside = only(loop).beside
    assert beside is not None
    until(lambda: beside.done)
    run(net, 1)
    assert only(loop).state == "trying"
    assert beside.told == "compiled in the call: the process beside the loop ended before it had compiled"
    assert worker.pid is None


def test_a_worker_that_takes_too_long_leaves_compiling_to_the_call() -> None:
    net = Net().eval()
    loop = captured(net, limit_s=0.001)  # it has yet to import torch
    beside = only(loop).beside
    assert beside is not None
    until(lambda: beside.done)
    run(net, 1)
    assert beside.told == "compiled in the call: the process beside the loop took longer than 0.001 s"
    assert (only(loop).state, worker.pid) == ("trying", None)


def test_a_graph_that_cannot_be_sent_is_compiled_in_the_call() -> None:
    """Code for inputs that share their memory is other code than for ones that do not, which the worker would have."""
    both = x(4)

    def function(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        takes(1.0)
        return one.sin() + other

    loop = loop_of(function, "inductor", background=True)
    until(lambda: bool(loop.seen.kinds) and only(loop).beside is not None, lambda: loop.entry.call(both[:2], both[2:]))
    assert loop.plan is not None
    loop.plan.backend._inner = lambda graph, _inputs: graph.forward
    torch.testing.assert_close(loop.entry.call(both[:2], both[2:]), both[:2].sin() + both[2:])
    beside = only(loop).beside
    assert beside is not None
    assert beside.told == "compiled in the call: some of its inputs share their memory"
    assert (only(loop).state, beside.calls, worker.pid) == ("trying", 0, None)


def test_a_cache_that_is_switched_off_is_not_filled() -> None:
    net = Net().eval()
    with torch._inductor.config.patch(fx_graph_cache=False):
        loop = captured(net)
    beside = only(loop).beside
    assert beside is not None
    assert beside.told == "compiled in the call: Inductor's cache on disk is switched off"


@pytest.mark.parametrize(("threads", "gpu", "beside"), [(1, False, True), (2, False, False), (1, True, False)])
def test_by_default_it_is_beside_the_loop_where_a_core_is_free(
    monkeypatch: pytest.MonkeyPatch, threads: int, gpu: bool, beside: bool
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("rooflight.compiling.hot.result.usable_cores", lambda: (0, 1))
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert HotOptions().beside is beside
    assert HotOptions(background=not beside).beside is not beside


def test_without_background_no_process_is_started() -> None:
    net = Net().eval()
    loop = loop_of(net, "eager")
    run(net, 40)
    assert (only(loop).beside, worker.pid) == (None, None)


def test_a_forked_program_does_not_own_the_worker() -> None:
    net = Net().eval()
    loop = captured(net)
    until(lambda: worker.pid is not None)
    pid = worker.pid
    child = os.fork()
    if not child:
        beside = only(loop).beside
        right = worker.pid is None and beside is not None and beside.done and not worker.busy
        worker.stop("not its own")
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert worker.pid == pid
    beside = only(loop).beside
    assert beside is not None
    assert not beside.done


_PROGRAM = """
import os, signal, sys, time
from rooflight.compiling.beside import worker
job = worker.submit([b"not a graph"], 100.0)
while worker.pid is None:
    time.sleep(0.01)
print(worker.pid, flush=True)
os.kill(os.getpid(), getattr(signal, sys.argv[1]))
time.sleep(100)
"""


def test_a_worker_that_is_stopped_while_it_is_waited_for_is_not_busy_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    class Selector(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> Any:
            worker.stop("meanwhile")
            return super().select(timeout)

    monkeypatch.setattr(selectors, "DefaultSelector", Selector)
    job = worker.submit([b"not a graph"], 10 * _PATIENCE_S)
    until(lambda: not worker.busy)
    assert (job.failed, worker.pid) == ("meanwhile", None)


@pytest.mark.parametrize("ending", ["SIGINT", "SIGKILL"])
def test_no_process_outlives_the_program(ending: str) -> None:
    program = [sys.executable, "-c", _PROGRAM, ending]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.wait(_PATIENCE_S)
    until(lambda: is_gone(pid))


def test_nothing_is_timed_against_eager_while_the_worker_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net().eval()
    loop = loop_of(net, Compiler())
    until(lambda: bool(loop.seen.kinds) and len(only(loop).compiled_s) > 0, lambda: run(net, 1))
    other = SimpleNamespace(busy=True)
    monkeypatch.setattr(hot_loop, "worker", other)
    before = list(only(loop).eager_s), list(only(loop).compiled_s)
    run(net, 20)
    assert (only(loop).eager_s, only(loop).compiled_s) == before
    assert only(loop).state == "trying"
    other.busy = False
    run(net, 20)
    assert only(loop).state == "compiled"


def test_what_the_worker_does_is_no_cost_but_for_the_gain_that_waits_for_it() -> None:
    kind = CallKind(expected=ExpectedGain(speedup=2.0, compile_s=10.0, source="test"))
    assert cost_s(kind, 2.0, HotOptions(background=False)) == 10.0
    assert cost_s(kind, 2.0, HotOptions(backend="eager", background=True)) == 10.0
    assert cost_s(kind, 2.0, HotOptions(background=True)) == pytest.approx(10 * IN_CALLS)
    # of (start + 10) s of eager runs meanwhile, half could have been saved
    assert cost_s(kind, 2.0, HotOptions(expected_runs=100, background=True)) == pytest.approx(
        10 * IN_CALLS + (START_S + 10) / 2
    )
    kind.compile_s = 4.0  # measured: the calls alone
    assert cost_s(kind, 2.0, HotOptions(background=True)) == 4.0
