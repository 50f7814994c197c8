"""``initialize_sol`` and ``log_training_sol`` in loops of many kinds."""

import argparse
import gc
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from tracked import CPU, Model, calibrate_by_hand, hooks_of, loss_of, tokens

import rooflight as rl
from rooflight import initialize_sol, log_training_sol
from rooflight.studies.tracking.loop import Tracker, add_sol_arguments, shutdown_sol
from rooflight.tracking import loop, observer

FORWARD_FLOPS = 9472  # of Model on 8 tokens: 2 * 8 * (2 * 256 + 80)


@pytest.fixture(autouse=True)
def _shut_down(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(loop, "_warned", False)
    yield
    shutdown_sol()


class Writer:
    def __init__(self, fails_at: int | None = None) -> None:
        self.rows: dict[int, dict[str, float]] = {}
        self.fails_at = fails_at

    def log(self, scalars: dict[str, float], step: int) -> None:
        if step == self.fails_at:
            raise OSError("disk full")
        self.rows.setdefault(step, {}).update(scalars)


class Training:
    """A loop around ``Model``, tracked or not."""

    def __init__(self, *, interval: int = 0, tracked: bool = True) -> None:
        torch.manual_seed(0)
        self.model = Model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.tracker = Tracker(self.model, device=CPU, interval=interval) if tracked else None
        self.writer = Writer()
        self.iteration = 0

    def forward(self, batch: int = 2) -> torch.Tensor:
        return loss_of(self.model(tokens(batch)), tokens(batch))

    def train(self, batch: int = 2, *, micro_batches: int = 1, steps: bool = True) -> Any:
        for _ in range(micro_batches):
            self.forward(batch).backward()
        if steps:
            self.optimizer.step()
        self.optimizer.zero_grad()
        return self.log()

    def log(self) -> Any:
        self.iteration += 1
        return self.tracker.log(self.iteration, self.writer) if self.tracker else None

    @property
    def last(self) -> dict[str, float]:
        return self.writer.rows[self.iteration]


@pytest.fixture
def training() -> Iterator[Training]:
    made = Training()
    yield made
    made.tracker.close()
    assert hooks_of(made.model) == 0


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many ops each recording had."""
    found: list[int] = []
    inner = observer.structure_of

    def counting(session: rl.Session, *others: Any) -> Any:
        found.append(len(session))
        return inner(session, *others)

    monkeypatch.setattr(observer, "structure_of", counting)
    return found


def test_two_iterations_are_recorded_and_the_others_timed(training, recordings):
    for _ in range(5):
        training.train()
    assert len(recordings) == 2
    rows = training.writer.rows
    assert [rows[step]["sol/recorded"] for step in range(1, 6)] == [1, 1, 0, 0, 0]
    for row in rows.values():
        assert row["sol/matrix_flops"] == 3 * FORWARD_FLOPS
        assert row["sol/program_bound_s"] <= row["sol/fused_bound_s"] <= row["sol/op_bound_s"]
        assert ("sol/efficiency" in row) == (not row["sol/recorded"])
    row = rows[5]
    layers = [value for name, value in row.items() if name.startswith("sol_layer/") and name.endswith("/seconds")]
    phases = [value for name, value in row.items() if name.startswith("sol_phase/") and name.endswith("/seconds")]
    assert sum(layers) == pytest.approx(row["sol/iteration_s"])
    assert sum(phases) == pytest.approx(row["sol/iteration_s"])
    assert {name for name in row if name.startswith("sol_phase/") and name.endswith("seconds")} == {
        f"sol_phase/{name}/seconds" for name in ("forward", "backward", "optimizer")
    }


def test_shapes_that_return_are_not_recorded_again(training, recordings):
    for _ in range(3):
        training.train(2)
    for _ in range(200):  # new ones are recorded as time allows
        training.train(3)
        if training.last["sol/recorded"]:
            break
    count = len(recordings)
    assert count == 3
    for batch in (2, 3, 3, 2, 2, 3) * 3:
        training.train(batch)
        assert training.last["sol/matrix_flops"] == 3 * FORWARD_FLOPS * batch // 2
        assert not training.last["sol/recorded"]
    assert len(recordings) == count


def test_an_iteration_that_was_never_recorded_has_times_but_no_bounds(training, monkeypatch):
    monkeypatch.setattr(observer, "_RECORDING_SHARE", -1.0)
    for _ in range(3):
        training.train(2)
    training.train(3)
    assert "sol/op_bound_s" not in training.last
    assert "sol/efficiency" not in training.last
    assert training.last["sol/iteration_s"] > 0
    training.train(2)
    assert training.last["sol/matrix_flops"] == 3 * FORWARD_FLOPS


class Seconds:
    """The observer's clock: an iteration takes a second, one that is recorded two."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(observer, "perf_counter", lambda: self.now)

    def pass_for(self, training: Training) -> bool:
        recorded = training.tracker._observer.so_far() is not None
        self.now += 2.0 if recorded else 1.0
        return recorded


def test_iterations_of_ever_new_shapes_are_recorded_only_as_the_budget_allows(monkeypatch):
    clock = Seconds(monkeypatch)
    training = Training()
    recorded = 0
    for batch in range(2, 152):
        recorded += clock.pass_for(training)
        training.train(batch)
    training.tracker.close()
    # the first two, then 3 % of about 150 s at a second each, and one that goes over: 2 + 4 + 1
    assert 3 <= recorded <= 7


def test_gradient_accumulation_is_two_forward_and_backward_passes_and_one_optimizer(training):
    for _ in range(4):
        training.train(micro_batches=2)
    assert training.last["sol/matrix_flops"] == 2 * 3 * FORWARD_FLOPS
    assert not training.last["sol/recorded"]


def test_iterations_with_and_without_optimizer_are_two_kinds(training, recordings, monkeypatch):
    monkeypatch.setattr(observer, "_RECORDING_SHARE", 1e9)
    for _ in range(4):
        training.train()
        training.train(steps=False)
    with_step = [training.writer.rows[step]["sol/bytes_moved"] for step in (5, 7)]
    without = [training.writer.rows[step]["sol/bytes_moved"] for step in (6, 8)]
    assert with_step[0] == with_step[1] > without[0] == without[1]
    assert len(recordings) <= 4


def test_an_evaluation_every_few_iterations_is_a_kind_of_its_own(training, monkeypatch):
    monkeypatch.setattr(observer, "_RECORDING_SHARE", 1e9)
    for step in range(1, 17):
        if step % 4 == 0:
            training.model.eval()
            with torch.no_grad():
                training.model(tokens())
            training.model.train()
        training.train()
    rows = training.writer.rows
    # 1 and 2 are recorded always; 4 is new, so 5 is, in vain; 8 is 4 after 4, so 12 is
    assert [step for step, row in rows.items() if row["sol/recorded"]] == [1, 2, 5, 12]
    assert "sol/matrix_flops" not in rows[8]
    assert rows[16]["sol/matrix_flops"] == 4 * FORWARD_FLOPS
    assert rows[15]["sol/matrix_flops"] == 3 * FORWARD_FLOPS


def test_a_scaler_that_meets_infinity_skips_the_optimizer(monkeypatch):
    monkeypatch.setattr(observer, "_RECORDING_SHARE", 1e9)
    training = Training()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(6):
        loss = training.forward() * (float("inf") if step == 4 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(training.optimizer)
        scaler.update()
        training.optimizer.zero_grad()
        training.log()
    training.tracker.close()
    rows = training.writer.rows
    assert "sol_phase/optimizer/seconds" in rows[4]
    assert "sol_phase/optimizer/seconds" not in rows[5]
    assert "sol_phase/optimizer/seconds" in rows[6]


# -- reports --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("interval", "printed"), [(0, []), (1, [1, 2, 3, 4, 5, 6]), (3, [3, 6]), (100, [])])
def test_a_report_every_interval(capsys, interval, printed):
    training = Training(interval=interval)
    reports = [training.train() for _ in range(6)]
    assert [step for step, report in enumerate(reports, 1) if report is not None] == printed
    out = capsys.readouterr().out
    assert out.count("Speed of light") == len(printed)
    training.tracker.close()
    if interval == 3:
        assert "By layer type" in out
        assert "iteration 6" in reports[5].title


def test_iterations_whose_numbers_repeat_go_back_or_stay(training):
    for number in (5, 5, 5, 1, 1, 0, -3):
        training.iteration = number - 1
        training.train()
        assert training.tracker.running
    assert set(training.writer.rows) == {5, 1, 0, -3}


def test_a_report_before_the_first_iteration_is_refused(training):
    with pytest.raises(RuntimeError, match="no iteration has ended"):
        training.tracker.report()


# -- the module's own loop --------------------------------------------------------------------------------------------


def arguments(*flags: str) -> argparse.Namespace:
    return add_sol_arguments(argparse.ArgumentParser()).parse_args([*flags])


@pytest.fixture
def calibrated(tmp_path, monkeypatch):
    calibrate_by_hand(tmp_path, monkeypatch)


def test_flags_turn_it_on_and_set_the_interval(calibrated, capsys):
    model = Model()
    tracker = initialize_sol(model, arguments("--rl-enable-sol-tracking", "--rl-sol-report-interval", "2"))
    assert tracker.interval == 2
    for iteration in (1, 2):
        loss_of(model(tokens()), tokens()).backward()
        report = log_training_sol(iteration)
    assert CPU.name in report.title
    assert "Speed of light" in capsys.readouterr().out


@pytest.mark.parametrize(
    "args", [arguments(), argparse.Namespace(), {}, {"rl_enable_sol_tracking": False}, argparse.Namespace(lr=1)]
)
def test_without_the_flag_nothing_is_tracked_and_nothing_said(args, caplog):
    model = Model()
    assert initialize_sol(model, args, device=CPU) is None
    assert hooks_of(model) == 0
    assert log_training_sol(1) is None
    assert caplog.records == []


def test_without_arguments_it_is_on(calibrated):
    assert initialize_sol(Model()).interval == 100


def test_the_device_flag(calibrated):
    args = arguments("--rl-enable-sol-tracking", "--rl-sol-device", "H100-SXM5-80GB")
    model = Model()
    initialize_sol(model, args)
    model(tokens())
    log_training_sol(1)
    assert loop._tracker.last_step.structure.analysis.device.name == "H100-SXM5-80GB"


def test_mistakes_made_before_training_are_told(calibrated):
    model = Model()
    with pytest.raises(ValueError, match="unknown device"):
        initialize_sol(model, arguments("--rl-enable-sol-tracking", "--rl-sol-device", "H300"))
    with pytest.raises(TypeError, match=r"not a torch\.nn\.Module"):
        initialize_sol("model")
    with pytest.raises(ValueError, match="from 1 on, or 0"):
        initialize_sol(model, arguments("--rl-enable-sol-tracking", "--rl-sol-report-interval", "-1"))
    assert hooks_of(model) == 0
    with pytest.raises(SystemExit):
        arguments("--rl-sol-report-interval", "often")


def test_log_before_initialize_says_so_once(caplog):
    for iteration in range(3):
        assert log_training_sol(iteration) is None
    assert len(caplog.records) == 1
    assert "initialize_sol" in caplog.text


def test_a_second_initialize_ends_the_first(calibrated):
    first, second = Model(), Model()
    old = initialize_sol(first)
    first(tokens())
    new = initialize_sol(second)
    assert not old.running
    assert new.running
    assert hooks_of(first) == 0
    assert old.log(1) is None


def test_several_models(calibrated):
    models = {"policy": Model(), "reference": Model()}
    writer = Writer()
    initialize_sol(models)
    for iteration in range(4):
        with rl.sol_nvtx_range("rl/logprobs"), torch.no_grad():
            models["reference"](tokens())
        with rl.sol_nvtx_range("rl/train/forward"):
            loss = loss_of(models["policy"](tokens()), tokens())
        loss.backward()
        log_training_sol(iteration, [writer, None])
    row = writer.rows[3]
    assert row["sol/matrix_flops"] == 4 * FORWARD_FLOPS
    assert row["sol_phase/rl/logprobs/efficiency"] > 0
    assert {"sol_phase/rl/train/forward/seconds", "sol_phase/backward/seconds"} <= set(row)


def test_after_shutdown_nothing_is_left_and_log_does_nothing(calibrated):
    model = Model()
    tracker = initialize_sol(model)
    model(tokens())
    shutdown_sol()
    shutdown_sol()
    assert not tracker.running
    assert hooks_of(model) == 0
    assert log_training_sol(1) is None
    tracker.close()
    assert tracker.log(2) is None


def test_paused_and_resumed(training):
    for _ in range(3):
        training.train()
    training.tracker.pause()
    assert not training.tracker.running
    assert hooks_of(training.model) == 0
    training.model(tokens(5))
    assert training.tracker.log(99, training.writer) is None
    training.tracker.resume()
    training.train()
    assert training.last["sol/matrix_flops"] == 3 * FORWARD_FLOPS
    assert 99 not in training.writer.rows


def test_paused_in_the_iteration_that_is_recorded(training, recordings):
    training.forward()
    training.tracker.pause()
    training.model(tokens(5))
    training.tracker.resume()
    training.train()
    assert training.last["sol/recorded"]
    assert training.last["sol/matrix_flops"] == 3 * FORWARD_FLOPS
    training.train()
    assert len(recordings) == 2


# -- writers --------------------------------------------------------------------------------------------------------


def test_a_writer_that_raises_is_left_out_and_the_others_go_on(training, caplog):
    broken = Writer(fails_at=2)
    for iteration in range(1, 5):
        training.forward().backward()
        training.tracker.log(iteration, [broken, training.writer])
    assert set(broken.rows) == {1}
    assert set(training.writer.rows) == {1, 2, 3, 4}
    assert len(caplog.records) == 1
    assert "disk full" in caplog.text
    assert training.tracker.running


def test_no_writer_and_an_empty_list_of_them(training):
    for writer in (None, [], [None]):
        training.forward().backward()
        training.tracker.log(1, writer)
    assert training.tracker.running
    assert training.tracker.last_step is not None


# -- a loop that runs long ------------------------------------------------------------------------------------------


def counted(run: Callable[[int], None], *, warm_up: int, iterations: int) -> tuple[int, int]:
    """Objects and blocks more than after ``warm_up``."""
    for iteration in range(warm_up):
        run(iteration)
    gc.collect()
    before = len(gc.get_objects()), sys.getallocatedblocks()
    for iteration in range(warm_up, warm_up + iterations):
        run(iteration)
    gc.collect()
    return len(gc.get_objects()) - before[0], sys.getallocatedblocks() - before[1]


@pytest.mark.slow
def test_ten_thousand_iterations_take_no_more_memory_than_a_hundred():
    model = nn.Linear(2, 2)
    given = torch.ones(1, 2)
    tracker = Tracker(model, device=CPU, interval=0)

    def run(iteration: int) -> None:
        model(given).sum().backward()
        tracker.log(iteration)

    objects, blocks = counted(run, warm_up=100, iterations=10_000)
    tracker.close()
    assert objects < 100
    assert blocks < 500


@pytest.mark.slow
def test_ever_new_shapes_and_phases_take_no_more_memory_either(monkeypatch):
    monkeypatch.setattr(observer, "_MOST_STRUCTURES", 3)
    monkeypatch.setattr(observer, "_RECORDING_SHARE", -1.0)
    model = nn.Linear(2, 2)
    tracker = Tracker(model, device=CPU, interval=0)

    def run(iteration: int) -> None:
        # now and then all may be recorded; a shape that torch was given before is kept once for all
        observer._RECORDING_SHARE = 1e9 if iteration % 50 == 0 else -1.0
        with rl.phase(f"step {iteration}"):
            model(torch.ones(1 + iteration % 50, 2)).sum().backward()
        tracker.log(iteration)

    objects, _ = counted(run, warm_up=300, iterations=300)
    assert len(tracker._observer._structures) <= 3
    assert len(tracker._observer._missed) <= 3
    tracker.close()
    assert objects < 500


def test_nothing_is_logged_while_all_goes_well(training, caplog):
    caplog.set_level(logging.DEBUG, logger="rooflight")
    for _ in range(4):
        training.train()
    assert caplog.records == []
