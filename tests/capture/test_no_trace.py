"""Torch after a recording is torch before it, however the recording ended."""

import pytest
import torch
from recorded_model import aligned, built, in_thread, model, raiser, recorded, x
from torch import nn

import rooflight as rl
from rooflight.records.record import Direction
from rooflight.sources.capture.record.modules import ModuleTracker


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
    def forward(self, x):
        x = self.first(x)
        if self.breaks:
            raise error
        return self.second(x)

    net = built(forward, "Net", first=nn.Linear(8, 8), second=nn.Linear(8, 8), breaks=True)
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
    def forward(self, x, depth: int):
        return self.leaf(x) if depth == 0 else self(x, depth - 1) + self(x, depth - 1)

    net = built(forward, "Tree", leaf=nn.Linear(8, 8))
    session = recorded(lambda: net(x(), 2), net)
    records = list(session.records)
    assert [op.module.path for op in records if op.signature.name == "aten::addmm"] == ["leaf"] * 4
    assert [op.module.path for op in records if op.signature.name == "aten::add"] == ["Tree"] * 3


def test_a_recording_begun_inside_a_forward_survives_the_end_of_that_forward() -> None:
    recordings = []

    def forward(self, x):
        recordings.append(rl.record(self).__enter__())
        return self.inner(x)

    net = built(forward, "Net", inner=nn.Linear(8, 8))
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


def test_an_optimizer_stepping_inside_backward_is_the_optimizer() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1, momentum=0.9) for parameter in net.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        parameter.grad = None

    handles = [parameter.register_post_accumulate_grad_hook(step) for parameter in optimizers]
    session = recorded(lambda: net(torch.ones(2, 4)).sum().backward(), net)
    for handle in handles:
        handle.remove()
    directions = {(op.signature.name, op.direction) for op in session.records}
    assert directions & {("aten::_foreach_add_", Direction.OPTIMIZER), ("aten::add_", Direction.OPTIMIZER)}
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
    monkeypatch.setattr(ModuleTracker, "install", lambda self: raiser(RuntimeError)())
    with pytest.raises(RuntimeError, match="stop"), rl.record():
        raise AssertionError("never reached")


def test_a_recording_is_used_once_and_read_when_over() -> None:
    recording = rl.record()
    with recording:
        with pytest.raises(RuntimeError, match=r"read \.session after"):
            _ = recording.session
        with pytest.raises(RuntimeError, match="used once"):
            recording.__enter__()
    with pytest.raises(RuntimeError, match="used once"):
        recording.__enter__()
    assert len(recording.session) == 0


def test_a_recording_ends_in_the_thread_that_it_began_in() -> None:
    recording = rl.record().__enter__()
    with pytest.raises(RuntimeError, match="thread"):
        in_thread(lambda: recording.__exit__(None, None, None))
    recording.__exit__(None, None, None)


def test_what_other_tools_put_in_the_place_of_methods_is_called_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(torch.Tensor, "numpy", lambda self: calls.append("numpy"))
    monkeypatch.setattr(torch.UntypedStorage, "resize_", lambda self, size: calls.append("resize_"))
    before = torch.Tensor.numpy, torch.UntypedStorage.resize_
    with rl.record(), rl.record(memory=True):
        torch.ones(3).numpy()
        torch.ones(3).untyped_storage().resize_(0)
    assert calls == ["numpy", "resize_"]
    assert before == (torch.Tensor.numpy, torch.UntypedStorage.resize_)
