"""Times that can be trusted: what disturbed them, whether the step is the recorded one, what torch is afterwards."""

import itertools
import subprocess
import sys
import warnings
from collections.abc import Callable

import pytest
import torch
from recorded_model import in_thread, recorded
from sessions import session_of
from torch import nn
from torch_state import torch_state
from tracked import CPU

import rooflight as rl
from rooflight.hardware.machine import cpu_load as bystander
from rooflight.hardware.machine.cpu_load import CpuTime
from rooflight.records.measurement import Measurement
from rooflight.roofline.tables.report import report_of
from rooflight.sources.capture.time.measure import MeasurementWarning, same_calls

WIDTH = 16
pytestmark = pytest.mark.filterwarnings("ignore:.*profiler.*")


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(5)))


@pytest.fixture(autouse=True)
def _quiet(monkeypatch) -> None:
    monkeypatch.setattr(bystander, "cpu_time", lambda: None)


def measured(session: rl.Session, step: Callable[[], object]) -> Measurement:
    found = rl.measure(session, step, warmup=1, max_runs=3, profiled=1).measurement
    assert found is not None
    return found


def x(rows: int = 4) -> torch.Tensor:
    return torch.ones(rows, WIDTH)


# -- other programs -----------------------------------------------------------------------------------------------


def cpu_taken(monkeypatch, *shares: float) -> list[float]:
    """Others take these shares of the CPU, one in each round of timing. Returns those not yet taken."""
    left = list(shares)

    def moments():
        while True:
            yield CpuTime(wall_s=0, own_s=0, all_s=0, cores=1)
            yield CpuTime(wall_s=1, own_s=0, all_s=left.pop(0), cores=1)

    reader = moments()
    monkeypatch.setattr(bystander, "cpu_time", lambda: next(reader))
    return left


def test_the_share_that_others_took_is_kept(monkeypatch, model):
    left = cpu_taken(monkeypatch, 0.04, 0.5)
    found = measured(recorded(lambda: model(x())), lambda: model(x()))
    assert (found.others_share, found.disturbed, left) == (0.04, False, [0.5])  # below 5 %: timed once


@pytest.mark.parametrize(("shares", "kept"), [((0.61, 0.02), 0.02), ((0.3, 0.61), 0.3), ((0.05, 0.05), 0.05)])
def test_a_disturbed_step_is_timed_once_more_and_the_quieter_times_kept(monkeypatch, model, shares, kept):
    left = cpu_taken(monkeypatch, *shares)
    said: list[str] = []
    step = lambda: model(x())  # noqa: E731
    session = rl.measure(recorded(step), step, warmup=1, max_runs=3, profiled=1, progress=said.append)
    assert session.measurement.others_share == kept
    assert left == []
    assert said.count("timing once more: other programs are running") == 1
    assert session.measurement.disturbed == (kept >= 0.05)
    notes = " ".join(report_of(rl.analyze(session, CPU)).notes)
    assert ("Other programs took" in notes) == (kept >= 0.05)


def test_a_long_step_is_not_timed_again(monkeypatch, model):
    left = cpu_taken(monkeypatch, 0.61, 0.0)
    ticks = itertools.count(0, 1)  # each look at the clock is a second later: 3 steps take 3 s
    monkeypatch.setattr("rooflight.sources.capture.time.measure.perf_counter", lambda: next(ticks))
    found = measured(recorded(lambda: model(x())), lambda: model(x()))
    assert (found.others_share, found.disturbed, left) == (0.61, True, [0.0])
    assert found.wall_samples_s.tolist() == [1, 1, 1]


# -- another step -------------------------------------------------------------------------------------------------


def test_the_recorded_step_is_known_again(model):
    found = measured(recorded(lambda: model(x())), lambda: model(x()))
    assert found.same_calls == 1
    assert found.of_the_session


def test_a_step_that_does_nothing_is_not_the_sessions(model):
    session = recorded(lambda: model(x()))
    with pytest.warns(MeasurementWarning, match="no call in common"):
        session = rl.measure(session, lambda: None, profiled=1)
    assert session.measurement.same_calls == 0
    analysis = rl.analyze(session, CPU)
    report = report_of(analysis)
    assert analysis.totals.measured_s is None
    assert (analysis.account.source, analysis.account.wall_s) == ("bound", analysis.totals.op_bound_s)
    facts = dict(report.facts)
    assert "efficiency" not in facts
    assert str(facts["timed step"]).endswith("not the recorded step")
    assert "is not the recorded one" in report.conclusion
    assert report.data.measurement.of_the_session is False
    assert report.data.wall_samples_s  # kept, not clipped


@pytest.mark.parametrize(
    ("step", "share"),
    [
        (lambda model: model(x(8)), 0.746),  # other shapes, of the same weights
        (lambda model: (model(x()), model(x())), 0.5),  # twice the work
        (lambda model: model[:2](x()), 0.5),  # 2 of 5 layers, and the input
    ],
)
def test_a_step_of_other_work_is_not_the_sessions(model, step, share):
    with pytest.warns(MeasurementWarning, match=f"only {share:.1%}"):
        found = measured(recorded(lambda: model(x())), lambda: step(model))
    assert found.same_calls == pytest.approx(share, abs=1e-3)
    assert not len(found.op_samples_s)


def test_a_step_whose_shapes_change_from_run_to_run_is_noticed(model):
    rows = itertools.cycle((2, 4))
    step = lambda: model(x(next(rows)))  # noqa: E731
    with pytest.warns(MeasurementWarning, match="shapes change from run to run"):
        measured(recorded(step), step)


def test_a_step_that_changes_a_little_is_measured_and_the_change_noted():
    rows = itertools.count(1)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(20)]

    def step() -> None:
        for layer in layers[:-1]:
            layer(x())
        layers[-1](x(next(rows)))

    session = recorded(step)
    session = rl.measure(session, step, warmup=1, max_runs=3, profiled=1)
    # of 20 layers one has 1 row instead of 2: all calls, and nearly all elements
    assert 0.99 < session.measurement.same_calls < 1
    assert "99.5% of its calls in common" in " ".join(report_of(rl.analyze(session, CPU)).notes)


def test_a_compiled_step_is_the_recorded_one(model):
    compiled = torch.compile(model, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = recorded(lambda: compiled(x()))
        warnings.simplefilter("error", MeasurementWarning)
        assert measured(session, lambda: compiled(x())).same_calls == 1


def test_an_optimizers_first_step_makes_its_state_and_is_still_the_same_step(model):
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(x()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    assert measured(recorded(step), step).same_calls == 1


def test_views_alone_cannot_be_compared():
    nothing = session_of([])
    assert same_calls(nothing, nothing) is None


# -- no ops at all ------------------------------------------------------------------------------------------------


def test_ops_of_another_thread_are_not_recorded_and_that_is_said(model):
    def step() -> None:
        in_thread(lambda: model(x()))

    session = recorded(step)
    assert len(session) == 0
    report = report_of(rl.analyze(session, CPU))
    assert dict(report.facts)["coverage"] == "0% of calls, 0% of bytes"
    assert (report.data.coverage.calls, report.data.coverage.bytes) == (0, 0)
    assert "record in them too" in report.conclusion
    found = rl.measure(session, step, profiled=1)  # nothing to compare: no claim either way
    assert found.measurement.same_calls is None
    assert report_of(rl.analyze(found, CPU)).data.measurement.beats_light is False


# -- what torch is afterwards -------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("run", [1, 2, 3, 6])  # recorded again, warming up, timed, profiled
def test_a_step_that_stops_leaves_torch_as_it_was(model, run, error):
    session = recorded(lambda: model(x()))
    before, runs = torch_state(), itertools.count(1)

    def step() -> None:
        model(x())
        if next(runs) == run:
            raise error("here")

    with pytest.raises(error, match="here"):
        measured(session, step)
    assert torch_state() == before
    assert not torch._C._autograd._profiler_enabled()
    assert measured(session, lambda: model(x())).of_the_session


def test_the_threads_that_ran_are_those_of_the_times(model):
    session, threads = recorded(lambda: model(x())), torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        timed = rl.measure(session, lambda: model(x()), profiled=1)
    finally:
        torch.set_num_threads(threads)
    assert session.environment["torch_threads"] == str(threads)
    assert timed.environment["torch_threads"] == str(threads + 1)
    assert timed.environment["fingerprint"] == session.environment["fingerprint"]


def test_measuring_writes_nothing_to_standard_error(tmp_path):
    """Kineto writes marks of its own there; its level is not left in the environment."""
    script = tmp_path / "measured.py"
    script.write_text(
        "import os, torch, rooflight as rl\n"
        "from rooflight.sources.traces.live import measure\n"
        "x = torch.ones(8)\n"
        "with rl.record() as recording: x + x\n"
        "assert measure(recording.session, lambda: x + x).measurement is not None\n"
        "assert 'KINETO_LOG_LEVEL' not in os.environ\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
