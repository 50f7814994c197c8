"""Torch after a recording is torch before it, however the recording ended."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch_state import torch_state

import rooflight as rl
from rooflight.records.record import Direction


@pytest.fixture(autouse=True)
def _untouched() -> Iterator[None]:
    before = torch_state()
    yield
    assert torch_state() == before


class Block(nn.Module):
    def __init__(self, breaks: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8)
        self.breaks = breaks

    def forward(self, x):
        x = self.project(x)
        if self.breaks is not None:
            self.breaks()
        return scaled_dot_product_attention(x, x, x).relu()


def model(breaks: Callable[[], None] | None = None) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.Sequential(Block(), Block(breaks)), nn.Linear(8, 8))


def raiser(error: type[BaseException]) -> Callable[[], None]:
    def raise_it() -> None:
        raise error("stop")

    return raise_it


def x() -> torch.Tensor:
    return torch.ones(2, 3, 8)


def aligned(session: rl.Session) -> rl.Session:
    """A session whose columns fit together: as many storages as each signature has places for them."""
    columns = session.columns
    assert {len(column) for name, column in columns.named_arrays() if not name.endswith(("offsets", "ids"))} == {
        len(session)
    }
    for record in session.records:
        if len(record.reads) + len(record.writes) == 0 or record.parent is not None:
            continue
        if record.signature.name.startswith("aten::") and not record.signature.name.endswith("attention"):
            assert len(record.reads) == len(record.signature.inputs)
            sizes = [int(session.storage_bytes[number]) for number in record.reads]
            assert all(size >= tensor.nbytes for size, tensor in zip(sizes, record.signature.inputs, strict=True))
    return session


def test_normal_exit_keeps_all_records() -> None:
    net = model()
    with rl.record(net) as recording:
        net(x()).sum().backward()
    assert len(aligned(recording.session)) > 20


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_error_passes_through_and_what_ran_before_it_is_kept(error: type[BaseException]) -> None:
    net = model(raiser(error))
    with pytest.raises(error), rl.record(net) as recording:
        net(x())
    assert "1.1.project" in {module.path for module in recording.session.modules}
    assert aligned(recording.session).record(len(recording.session) - 1).module.path == "1.1.project"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_modules_are_right_again_after_an_error_that_the_program_survives(error: type[BaseException]) -> None:
    broken, net = model(raiser(error)), model()
    with rl.record(net) as recording:
        for _ in range(2):
            with pytest.raises(error):
                broken(x())
            net(x())
            torch.ones(3).neg()
    last = aligned(recording.session)
    assert last.record(len(last) - 1).module.path == ""
    paths = [op.module.path for op in last.records if op.signature.name == "aten::addmm"]
    whole = ["0", "1.0.project", "1.1.project", "2"]
    part = [path for path in paths if path.startswith("Sequential")]
    assert len(part) == 6
    assert [path for path in paths if not path.startswith("Sequential")] == whole * 2


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_module_interrupted_between_its_children_is_forgotten(error: type[BaseException]) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.breaks = nn.Linear(8, 8), nn.Linear(8, 8), True

        def forward(self, x):
            x = self.first(x)
            if self.breaks:
                raise error
            return self.second(x)

    net = Net()
    with rl.record(net) as recording:
        with pytest.raises(error):
            net(x())
        net.breaks = False
        net(x())
        torch.ones(3).neg()
    records = list(recording.session.records)
    assert [op.module.path for op in records if op.signature.name == "aten::addmm"] == ["first", "first", "second"]
    assert records[-1].module.path == ""


def test_a_module_that_calls_itself_is_not_taken_for_an_interrupted_one() -> None:
    class Tree(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.leaf = nn.Linear(8, 8)

        def forward(self, x, depth: int):
            return self.leaf(x) if depth == 0 else self(x, depth - 1) + self(x, depth - 1)

    net = Tree()
    with rl.record(net) as recording:
        net(x(), 2)
    records = list(recording.session.records)
    assert [op.module.path for op in records if op.signature.name == "aten::addmm"] == ["leaf"] * 4
    assert [op.module.path for op in records if op.signature.name == "aten::add"] == ["Tree"] * 3


def test_a_recording_begun_inside_a_forward_survives_the_end_of_that_forward() -> None:
    recordings = []

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x):
            recordings.append(rl.record(self).__enter__())
            return self.inner(x)

    net = Net()
    net(x())
    torch.ones(3).neg()
    recordings[0].__exit__(None, None, None)
    records = list(recordings[0].session.records)
    assert [op.module.path for op in records if op.signature.name == "aten::addmm"] == ["inner"]
    assert records[-1].module.path == ""


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_optimizer_step_that_raised_is_over(error: type[BaseException]) -> None:
    class Breaking(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            raise error

    net = nn.Linear(4, 4)
    optimizer = Breaking(net.parameters(), lr=0.1)
    with rl.record(net) as recording:
        net(torch.ones(2, 4)).sum().backward()
        with pytest.raises(error):
            optimizer.step()
        net(torch.ones(2, 4)).sum().backward()
    directions = [op.direction for op in recording.session.records]
    assert Direction.OPTIMIZER in directions
    after = directions[len(directions) - directions[::-1].index(Direction.OPTIMIZER) :]
    assert set(after) == {Direction.FORWARD, Direction.BACKWARD}


def test_the_closure_of_an_optimizer_runs_forward_and_backward() -> None:
    net = nn.Linear(4, 4)
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = net(torch.ones(2, 4)).sum()
        loss.backward()
        return loss

    with rl.record(net) as recording:
        optimizer.step(closure)
    directions = {(op.signature.name, op.direction) for op in recording.session.records}
    assert ("aten::addmm", Direction.FORWARD) in directions
    assert ("aten::mm", Direction.BACKWARD) in directions
    assert ("aten::dot", Direction.OPTIMIZER) in directions


def test_an_optimizer_stepping_inside_backward_is_the_optimizer() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1, momentum=0.9) for parameter in net.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        parameter.grad = None

    handles = [parameter.register_post_accumulate_grad_hook(step) for parameter in optimizers]
    with rl.record(net) as recording:
        net(torch.ones(2, 4)).sum().backward()
    for handle in handles:
        handle.remove()
    directions = {(op.signature.name, op.direction) for op in recording.session.records}
    assert ("aten::_foreach_add_", Direction.OPTIMIZER) in directions or ("aten::add_", Direction.OPTIMIZER) in directions
    assert ("aten::mm", Direction.BACKWARD) in directions
    assert ("aten::mm", Direction.OPTIMIZER) not in directions


def test_errors_in_backward_and_in_a_custom_function() -> None:
    class Breaking(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value * 2

        @staticmethod
        def backward(ctx, grad):
            raise ValueError("in backward")

    net = nn.Linear(4, 4)
    with rl.record(net) as recording:
        with pytest.raises(ValueError, match="in backward"):
            Breaking.apply(net(torch.ones(2, 4))).sum().backward()
        net(torch.ones(2, 4)).sum()
    last = recording.session.record(len(recording.session) - 1)
    assert (last.signature.name, last.direction, last.module.path) == ("aten::sum", Direction.FORWARD, "")


def test_errors_while_entering_take_everything_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from rooflight.capture.modules import ModuleTracker

    monkeypatch.setattr(ModuleTracker, "install", lambda self: raiser(RuntimeError)())
    with pytest.raises(RuntimeError, match="stop"), rl.record():
        raise AssertionError("never reached")


def test_a_recording_is_used_once_and_read_when_over() -> None:
    recording = rl.record()
    with recording:
        with pytest.raises(RuntimeError, match="read .session after"):
            _ = recording.session
        with pytest.raises(RuntimeError, match="used once"):
            recording.__enter__()
    with pytest.raises(RuntimeError, match="used once"):
        recording.__enter__()
    assert len(recording.session) == 0


def test_a_recording_ends_in_the_thread_that_it_began_in() -> None:
    recording = rl.record().__enter__()
    errors: list[BaseException] = []

    def leave() -> None:
        try:
            recording.__exit__(None, None, None)
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    recording.__exit__(None, None, None)
    assert "thread" in str(errors[0])


# -- interrupts ------------------------------------------------------------------------------------------------------


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_an_interrupt_at_any_moment_leaves_whole_records() -> None:
    net = model()

    def step() -> None:
        net.zero_grad()
        net(x()).sum().backward()

    with rl.record(net) as recording:
        step()
    length = len(recording.session)
    names = [op.signature.name for op in recording.session.records]
    rng = np.random.default_rng(0)
    start = time.perf_counter()
    with rl.record(net):
        step()
    seconds = time.perf_counter() - start
    interrupts = 0
    while interrupts < 30:
        with rl.record(net) as recording:
            try:
                with interrupted_after(float(rng.uniform(1e-6, seconds))):
                    step()
            except KeyboardInterrupt:
                interrupts += 1
            step()
        session = aligned(recording.session)
        assert [op.signature.name for op in session.records][-length:] == names
        # the step after it is recorded as if nothing had been
        assert [op.module.path for op in session.records if op.signature.name == "aten::addmm"][-4:] == [
            "0", "1.0.project", "1.1.project", "2"]  # fmt: skip
        assert session.record(len(session) - 1).direction is Direction.BACKWARD


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_while_a_recording_begins_or_ends() -> None:
    armed = False

    def interrupt(*_):
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    rng = np.random.default_rng(0)
    handler = signal.signal(signal.SIGALRM, interrupt)
    before = torch_state()
    start = time.perf_counter()
    for _ in range(20):
        with rl.record():
            pass
    seconds = (time.perf_counter() - start) / 20
    interrupts = 0
    while interrupts < 300:
        try:
            armed = True
            signal.setitimer(signal.ITIMER_REAL, float(rng.uniform(1e-6, 1.2 * seconds)))
            with rl.record():
                pass
            armed = False
        except KeyboardInterrupt:
            interrupts += 1
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert torch_state() == before
    signal.signal(signal.SIGALRM, handler)


def test_an_interrupt_from_a_tensor_hook() -> None:
    net = model()
    with rl.record(net) as recording:
        out = net(x())
        out.register_hook(lambda grad: raiser(KeyboardInterrupt)())
        with pytest.raises(KeyboardInterrupt):
            out.sum().backward()
        torch.ones(3).neg()
    last = aligned(recording.session).record(len(recording.session) - 1)
    assert (last.direction, last.module.path) == (Direction.FORWARD, "")


# -- several at once -------------------------------------------------------------------------------------------------


def test_nested_recordings_see_the_same_records() -> None:
    net = model()
    with rl.record(net) as outer:
        torch.ones(3).neg()
        before = len(outer._tape)
        with rl.record(net) as inner:
            net(x()).sum().backward()
        torch.ones(3).neg()
    inside = list(outer.session.records)[before : before + len(inner.session)]
    assert len(outer.session) == before + len(inner.session) + 2
    for one, other in zip(inside, inner.session.records, strict=True):
        assert (one.signature, one.module, one.phase, one.direction) == (
            other.signature, other.module, other.phase, other.direction)  # fmt: skip
        assert len(one.reads) == len(other.reads)
        assert (one.parent is None) == (other.parent is None)
        assert one.parent is None or one.parent - before == other.parent


def test_recordings_may_end_in_the_order_they_began() -> None:
    first, second = rl.record(), rl.record()
    first.__enter__()
    torch.ones(3).neg()
    second.__enter__()
    torch.ones(3).exp()
    first.__exit__(None, None, None)
    torch.ones(3).tanh()
    second.__exit__(None, None, None)
    names = [[op.signature.name.removeprefix("aten::") for op in r.session.records] for r in (first, second)]
    assert names == [["ones", "neg", "ones", "exp"], ["ones", "exp", "ones", "tanh"]]


def test_phases_are_told_to_recordings_begun_inside_them() -> None:
    with rl.phase("outer"), rl.record() as recording:
        torch.ones(3)
        with pytest.raises(ZeroDivisionError), rl.phase("inner"):
            torch.zeros(3)
            _ = 1 / 0
        torch.ones(3)
    assert [op.phase for op in recording.session.records] == ["outer", "inner", "outer"]


def test_a_phase_needs_a_name() -> None:
    with pytest.raises(ValueError, match="needs a name"), rl.phase(""):
        pass


def test_phases_belong_to_their_thread() -> None:
    def elsewhere() -> None:
        with rl.phase("elsewhere"), rl.record() as recording:
            torch.ones(3)
        sessions.append(recording.session)

    sessions: list[rl.Session] = []
    with rl.record() as recording, rl.phase("here"):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        torch.zeros(3)
    assert [(op.signature.name, op.phase) for op in recording.session.records] == [("aten::zeros", "here")]
    assert [(op.signature.name, op.phase) for op in sessions[0].records] == [("aten::ones", "elsewhere")]


def test_threads_record_each_their_own() -> None:
    """Recordings of different programs overlap in every order; none sees another's ops, and the last out cleans up."""
    programs = {
        "relu": lambda: model()(x()).sum().backward(),
        "conv": lambda: nn.Conv1d(2, 3, 2)(torch.ones(1, 2, 5)).sum().backward(),
        "attention": lambda: scaled_dot_product_attention(*[torch.ones(1, 2, 3, 4, requires_grad=True)] * 3).sum().backward(),
        "step": lambda: torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1).step(),
    }
    alone = {}
    for name, program in programs.items():
        with rl.record() as recording:
            program()
        alone[name] = [(op.signature, op.module, op.direction) for op in recording.session.records]
    errors: list[BaseException] = []

    def work(name: str, seed: int) -> None:
        rng = np.random.default_rng(seed)
        clean = torch_state()["dispatch modes"], torch_state()["listeners"]
        try:
            for _ in range(10):
                time.sleep(float(rng.uniform(0, 2e-3)))
                with rl.record() as recording:
                    programs[name]()
                    time.sleep(float(rng.uniform(0, 2e-3)))
                found = [(op.signature, op.module, op.direction) for op in recording.session.records]
                assert found == alone[name]
                assert clean == (torch_state()["dispatch modes"], torch_state()["listeners"])
        except BaseException as error:  # noqa: BLE001 - handed to the main thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name, seed)) for seed, name in enumerate([*programs, *programs])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_workers_started_inside_are_not_recorded_and_not_disturbed() -> None:
    """A recording belongs to its thread, as torch's modes do."""
    results: list[torch.Tensor] = []

    def work() -> None:
        net = model()
        net(x()).sum().backward()
        results.append(scaled_dot_product_attention(x(), x(), x()))

    with rl.record() as recording:
        torch.zeros(3)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        torch.zeros(3)
    assert [op.signature.name for op in recording.session.records] == ["aten::zeros"] * 2
    assert torch.equal(results[0], scaled_dot_product_attention(x(), x(), x()))
