"""Where scalars go: whatever the loop has open, and what happens when that is closed."""

import logging

import pytest
import torch
from torch.utils.tensorboard import SummaryWriter

from rooflight.reporting.writers import write_scalars, writers_in
from rooflight.sources.capture.time.marks import HostMarks
from rooflight.studies.tracking.loop import Tracker

SCALARS = {"sol/iteration_s": 0.25, "sol_phase/forward/seconds": 0.125}


@pytest.fixture(autouse=True)
def _untouched() -> None:
    """W&B, imported inside, sets filters of warnings."""


class Board:
    """Takes scalars as a SummaryWriter does."""

    def __init__(self) -> None:
        self.written: list[tuple[str, float, int]] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.written.append((name, value, step))


class Run:
    """Takes scalars as a W&B run does: ``step`` is where it is, and what is logged below that is dropped."""

    def __init__(self, step: int = 0) -> None:
        self.step = step
        self.written: list[tuple[dict[str, float], int | None]] = []

    def log(self, scalars: dict[str, float], step: int | None = None) -> None:
        self.written.append((scalars, step))


class Broken(Board):
    def add_scalar(self, name, value, step):
        super().add_scalar(name, value, step)
        raise OSError("no space left on device")


def tracked(writer: object, iterations: int = 2) -> Tracker:
    """Track a loop that does next to nothing."""
    model = torch.nn.Linear(2, 2)
    tracker = Tracker(model, device="H100-SXM5-80GB", interval=0)
    for iteration in range(iterations):
        model(torch.ones(1, 2)).sum().backward()
        tracker.log(iteration, writer)
    assert tracker.running
    tracker.close()
    return tracker


def test_no_writer_is_no_writer():
    assert writers_in(None) == ()
    assert writers_in([]) == ()
    assert writers_in([None, [None]]) == ()


def test_one_writer_or_several():
    board, run = Board(), Run()
    assert writers_in(board) == (board,)
    assert writers_in([board, None, (run,)]) == (board, run)


@pytest.mark.parametrize("thing", ["runs/today", b"runs", 7, object(), {"board": Board()}, [Board(), "runs"]])
def test_what_takes_no_scalars_is_refused_by_name(thing):
    with pytest.raises(TypeError, match=r"a (str|bytes|int|object|dict) takes no scalars: pass a SummaryWriter"):
        writers_in(thing)


def test_a_board_gets_each_scalar_under_the_step():
    board = Board()
    write_scalars(board, SCALARS, 7)
    assert board.written == [("sol/iteration_s", 0.25, 7), ("sol_phase/forward/seconds", 0.125, 7)]


def test_a_run_gets_all_scalars_at_once():
    run = Run()
    write_scalars(run, SCALARS, 7)
    assert run.written == [(SCALARS, 7)]


def test_a_run_that_is_further_on_is_told_the_iteration_beside():
    run = Run(step=20)
    write_scalars(run, SCALARS, 7)
    assert run.written == [({**SCALARS, "sol/iteration": 7}, None)]


def test_a_tracker_writes_every_iteration_to_all():
    board, run = Board(), Run()
    tracked([board, run], iterations=3)
    assert sorted({step for _, _, step in board.written}) == [0, 1, 2]
    assert [step for _, step in run.written] == [0, 1, 2]
    assert {name for name, _, step in board.written if step == 1} == set(run.written[1][0])


def test_a_writer_that_breaks_is_given_up_and_the_others_go_on(caplog):
    board, broken = Board(), Broken()
    with caplog.at_level(logging.WARNING, "rooflight"):
        tracked([broken, board], iterations=3)
    assert len(broken.written) == 1
    assert sorted({step for _, _, step in board.written}) == [0, 1, 2]
    assert [record.getMessage() for record in caplog.records] == [
        "rooflight: no more scalars to Broken: no space left on device"
    ]


def test_what_is_no_writer_stops_no_loop(caplog):
    model = torch.nn.Linear(2, 2)
    tracker = Tracker(model, device="H100-SXM5-80GB", interval=0)
    with caplog.at_level(logging.WARNING, "rooflight"):
        for iteration in range(3):
            model(torch.ones(1, 2)).sum().backward()
            tracker.log(iteration, "runs/today")
    tracker.close()
    assert "a str takes no scalars" in caplog.text
    assert len(caplog.records) == 1


def test_what_the_device_has_not_finished_is_written_at_the_end(monkeypatch):
    class Late(HostMarks):
        """Times are known when they are asked for a second time."""

        def cut(self, key):
            read, asked = super().cut(key), []

            def answer():
                asked.append(True)
                return read() if len(asked) > 1 else None

            return answer

    monkeypatch.setattr("rooflight.sources.capture.time.spans.HostMarks", Late)
    run = Run()
    tracker = tracked(run, iterations=4)
    assert [step for _, step in run.written] == [0, 1, 2, 3]
    assert tracker.last_step.number == 3


def test_a_closed_summary_writer_stops_no_loop(tmp_path, caplog):
    writer = SummaryWriter(str(tmp_path))
    tracked(writer)
    writer.close()
    with caplog.at_level(logging.WARNING, "rooflight"):
        tracked(writer, iterations=3)
    assert [record.getMessage() for record in caplog.records] == [
        "rooflight: no more scalars to SummaryWriter: this SummaryWriter is closed"
    ]
    assert len(list(tmp_path.iterdir())) == 1  # torch's own method would open another file


def test_a_finished_run_stops_no_loop(tmp_path, monkeypatch, caplog):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(project="rooflight", mode="offline", dir=str(tmp_path))
    tracked(run)
    run.finish()
    with caplog.at_level(logging.WARNING, "rooflight"):
        tracked([run, wandb], iterations=3)
    messages = [record.getMessage() for record in caplog.records]
    assert messages[0] == "rooflight: no more scalars to Run: this W&B run is finished"
    assert messages[1].startswith("rooflight: no more scalars to module: ")
    assert len(messages) == 2  # each is given up once
