"""A window of a live program: three iterations undisturbed, three under Kineto; on a CPU, with a clock, and by hand."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from kineto_traces import kernel, launch, op, span, write

import rooflight as rl
from rooflight.records.account import Cause
from rooflight.records.measurement import Measurement
from rooflight.records.timeline import StepKind
from rooflight.sources.capture.run.recording import Kept, Recorder
from rooflight.sources.capture.run.steps import Steps
from rooflight.sources.capture.time.window import TRACE, Profile, Window
from rooflight.sources.traces.live import with_window

MM = {"dims": [[4, 8], [8, 2]], "types": ["float", "float"]}


class Watched:
    """A profiler that writes down what is asked of it."""

    def __init__(self, *, fails: bool = False, taken: bool = False) -> None:
        self.asked: list[str] = []
        self.fails, self.taken = fails, taken

    def is_taken(self) -> bool:
        return self.taken

    def synchronize(self) -> None:
        self.asked.append("sync")

    def start(self) -> None:
        if self.fails:
            raise RuntimeError("CUPTI_ERROR_NOT_INITIALIZED")
        self.asked.append("start")

    def next(self) -> None:
        self.asked.append("next")

    def drop(self) -> None:
        self.asked.append("drop")

    def stop(self) -> Profile:
        self.asked.append("stop")
        return Profile([])


def window_of(kineto, *, device: str = "cuda", ticks=range(1, 99)) -> tuple[Window, Steps, Recorder]:
    recorder, steps = Recorder(skip=0), Steps()
    with rl.record() as recording:
        torch.ones(3).cos()
    session = replace(recording.session, environment={**recording.session.environment, "device_kind": device})
    recorder.kept[StepKind.OPTIMIZER] = Kept(session, 0, 1, whole=True)
    clock = iter(ticks)
    window = Window(recorder, kineto, lambda: float(next(clock)))
    steps.ended = lambda: window.opens(StepKind.OPTIMIZER, steps)
    return window, steps, recorder


def run(steps: Steps, count: int) -> None:
    for _ in range(count):
        steps.add(steps.count * 10, steps.count * 10 + 5, 0, 1, 3, (0, 0, 0))


def test_three_iterations_pass_between_two_syncs_and_three_under_the_profiler() -> None:
    kineto = Watched()
    window, steps, recorder = window_of(kineto, ticks=(10, 25))
    run(steps, 6)
    assert kineto.asked == ["sync", "sync", "start", "next", "next", "next"]
    assert window.profile is None
    run(steps, 4)
    assert kineto.asked[-2:] == ["next", "stop"]
    assert window.mean_s == 5.0
    assert window.profile is not None
    assert recorder.taken[StepKind.OPTIMIZER] == {4, 5, 6}
    assert steps.ended is None


def test_a_script_that_ends_within_the_window_leaves_no_profiler_running() -> None:
    kineto = Watched()
    window, steps, _ = window_of(kineto)
    run(steps, 5)
    window.close()
    assert kineto.asked[-1] == "drop"
    assert window.profile is None


def test_what_fails_is_said_once_and_the_script_goes_on() -> None:
    window, steps, recorder = window_of(Watched(fails=True))
    run(steps, 9)
    assert window.profile is None
    (note,) = recorder.notes
    assert "CUPTI_ERROR_NOT_INITIALIZED" in note


def test_a_program_that_profiles_itself_is_left_alone() -> None:
    kineto = Watched(taken=True)
    window, steps, _ = window_of(kineto)
    run(steps, 9)
    window.close()
    assert kineto.asked == []


def test_on_a_cpu_nothing_happens() -> None:
    kineto = Watched()
    _, steps, _ = window_of(kineto, device="cpu")
    run(steps, 9)
    assert (kineto.asked, steps.ended) == ([], None)


REAL = """
import torch
from rooflight.sources.capture.run.listening import Listening
from rooflight.sources.capture.run.hooks import install
from rooflight.sources.capture.run.outcome import session_of
from rooflight.sources.capture.time.window import Kineto
ear = Listening(skip=1)
finder = ear.finder
finder.window.device, finder.window._kineto = "cpu", Kineto(None)
install(ear)
net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Linear(256, 8))
some = torch.optim.SGD(net.parameters(), lr=1e-3)
for _ in range(16):
    batch = torch.randn(64, 256).sort().values
    some.zero_grad()
    net(batch).sum().backward()
    some.step()
session_of(finder, "train.py", 0, None).save("live.session")
print(finder.window.mean_s, finder.recorder.notes)
"""


def test_the_ops_of_a_real_window_are_those_of_the_step(tmp_path: Path) -> None:
    """On a CPU, with torch's own profiler: the marks are whole iterations, whose other ops are skipped."""
    done = subprocess.run([sys.executable, "-c", REAL], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    mean_s, notes = done.stdout.split(maxsplit=1)
    assert notes.strip() == "[]"
    session = rl.load(tmp_path / "live.session")
    assert session.measurement is not None
    assert session.measurement.op_samples_s.shape == (3, len(session))
    products = [number for number, each in enumerate(session.signatures) if each.name == "aten::addmm"]
    times = session.measurement.op_samples_s[:, np.isin(session.columns.signature, products)]
    assert times.size == 6
    assert (times > 1e-6).all()
    assert session.measurement.wall_samples_s.mean() >= float(mean_s) * 0.99


def test_iterations_of_other_sizes_than_the_recorded_step_give_it_no_op_times(tmp_path: Path) -> None:
    """The first steps are short, and the size that takes longest is recorded after the window has closed."""
    unequal = REAL.replace("range(16)", "range(40)").replace("torch.randn(64, 256)", "torch.randn(ROWS, 256)")
    unequal = unequal.replace("    batch =", "    ROWS = 64 if _ % 2 else 128 if _ < 10 else 16384\n    batch =")
    done = subprocess.run([sys.executable, "-c", unequal], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    session = rl.load(tmp_path / "live.session")
    assert session.run is not None
    (recorded,) = [size for size in session.run.alike if size.recorded]
    assert recorded.elements == 16384 * 256
    assert any("other sizes than the recorded step" in note for note in session.notes)


def traced(tmp_path: Path, wall_s: float) -> rl.Session:
    """A live session of one product, whose window has two iterations of 100 µs: a kernel of 10, and a wait of the
    loader from 20 to 80.
    """
    events = []
    for at in (0, 100):
        events += [span("rooflight.step", at, at + 100), op("aten::mm", at + 1, at + 8, **MM), launch(at + 2, at + 1)]
        events += [kernel(at + 10, at + 20, at + 1)]
        events += [span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 20, at + 80)]
    path = write(tmp_path / "window.json", events)
    with rl.record() as recording:
        torch.ones(4, 8) @ torch.ones(8, 2)
    session = recording.session
    facts = {**session.environment, "device_kind": "cuda", "gpu": "NVIDIA H100 80GB HBM3", TRACE: str(path)}
    count = len(session)
    measured = Measurement(wall_samples_s=np.full(3, wall_s), op_samples_s=np.full((2, count), 10e-6 / count),
                           clock="by hand")  # fmt: skip
    return replace(session, environment=facts).with_measurement(measured)


@pytest.mark.parametrize(("wall_s", "loader_s"), [(90e-6, 52), (100e-6, 60), (130e-6, 60)])
def test_the_device_waits_for_what_the_window_shows_and_no_longer_than_undisturbed(tmp_path, wall_s, loader_s) -> None:
    live = traced(tmp_path, wall_s)
    session = with_window(live)
    assert TRACE not in session.environment
    assert not Path(live.environment[TRACE]).exists()
    account = rl.analyze(session, "H100-SXM5-80GB").account
    assert account.wall_s == pytest.approx(wall_s)
    assert sum(row.seconds for row in account.rows) == pytest.approx(wall_s)
    assert account.seconds(Cause.LOADER) == pytest.approx(loader_s * 1e-6, rel=0.05)


def test_a_window_that_is_no_trace_is_said(tmp_path) -> None:
    live = traced(tmp_path, 1e-4)
    Path(live.environment[TRACE]).write_text("{")
    session = with_window(live)
    assert "Why the device was idle is not known" in session.notes[-1]
    assert session.measurement is live.measurement
    assert with_window(session) is session
