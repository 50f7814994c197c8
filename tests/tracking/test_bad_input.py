"""Tracking never stops a training run, nor changes what it computes: errors injected at every seam."""

import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from recorded_model import in_thread
from torch import nn
from tracked import CPU, Model, hooks_of, loss_of, tokens

import rooflight as rl
from rooflight.reporting import console
from rooflight.roofline import costed
from rooflight.sources.capture.record import dispatch, recorder
from rooflight.sources.capture.record import modules as functions
from rooflight.sources.capture.record.dispatch import DispatchSource
from rooflight.sources.capture.time import spans
from rooflight.sources.capture.time.marks import HostMarks
from rooflight.studies.tracking.loop import Tracker
from rooflight.tracking import loop, observer


class Failing:
    """Stands in for something of ours and raises at the n-th call."""

    def __init__(self, inner: Callable[..., Any], at: int) -> None:
        self.inner, self.left, self.failed = inner, at, False

    def __get__(self, instance: Any, _: Any) -> Any:
        return self if instance is None else lambda *args, **kwargs: self(instance, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            self.failed = True
            raise ZeroDivisionError("injected")
        return self.inner(*args, **kwargs)


SEAMS: dict[str, tuple[Any, str]] = {
    "structure_of": (observer, "structure_of"),
    "analyze": (observer, "analyze"),
    "a cost formula": (costed, "cost_of"),
    "program bounds": (costed, "program_bounds"),
    "scalars_of": (loop, "scalars_of"),
    "report_of_step": (loop, "report_of_step"),
    "printing": (console, "print_report"),
    "cut": (spans.SpanTimer, "cut"),
    "marks": (HostMarks, "cut"),
    "the look of a call": (spans, "look_of"),
    "a hook in backward": (spans, "_call_before"),
    "meeting an op": (dispatch, "reader_of"),
    "reading an op": (dispatch, "_current_graph_task_id"),
    "entering or leaving a module": (DispatchSource, "move"),
    "the name of a function": (functions, "function_name"),
    "beginning a recording": (recorder.record, "__enter__"),
    "ending a recording": (recorder.record, "__exit__"),
    "the facts of the machine": (recorder, "describe"),
    "attaching": (spans.SpanTimer, "attach"),
}


class Writer:
    def log(self, scalars: dict[str, float], step: int) -> None:
        pass


def trained(tracker_of: Callable[[nn.Module], Tracker | None]) -> tuple[list[Any], nn.Module, Tracker | None]:
    """What five steps leave: losses, parameters, optimizer state, random numbers."""
    torch.manual_seed(1)
    model = nn.Sequential(Model(), nn.Dropout(0.2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    tracker = tracker_of(model)
    left: list[Any] = []
    for step in range(5):
        with rl.phase("train"):
            loss = loss_of(model(tokens()), tokens())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if tracker is not None:
            tracker.log(step, Writer())
        left.append(loss.item())
    left += [parameter.tolist() for parameter in model.parameters()]
    left += [torch.rand(3).tolist()]
    return left, model, tracker


@pytest.mark.parametrize("at", [1, 2, 5])
@pytest.mark.parametrize("seam", SEAMS)
def test_an_error_of_our_own_is_logged_once_and_the_loop_goes_on(monkeypatch, caplog, capsys, seam, at):
    expected, _, _ = trained(lambda _: None)
    where, name = SEAMS[seam]
    failing = Failing(getattr(where, name), at)
    monkeypatch.setattr(where, name, failing)
    left, model, tracker = trained(lambda model: Tracker(model, device=CPU, interval=1))
    monkeypatch.undo()
    assert left == expected
    assert tracker is not None
    if failing.failed:
        assert not tracker.running
        told = [record for record in caplog.records if record.levelname == "WARNING"]
        assert len(told) == 1
        assert "tracking ended after an error: ZeroDivisionError: injected" in told[0].getMessage()
        assert hooks_of(model) == 0
    else:
        assert at > 1
        assert caplog.records == []
    tracker.close()
    assert hooks_of(model) == 0


@pytest.fixture
def transformers() -> Any:
    with warnings.catch_warnings():  # importing it sets filters
        found = pytest.importorskip("transformers")
        assert found.GPT2LMHeadModel
        return found


def gpt2_trained(transformers: Any, tracker_of: Callable[[nn.Module], Tracker | None]) -> tuple[Any, ...]:
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=50, n_positions=16, resid_pdrop=0.1)
    assert config.attn_pdrop == config.embd_pdrop == 0.1
    model = transformers.GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    given = torch.randint(50, (2, 8))
    tracker = tracker_of(model)
    for step in range(5):
        model(input_ids=given, labels=given, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if tracker is not None:
            tracker.log(step)
    if tracker is not None:
        assert tracker.running
        tracker.close()
    return [p.detach().clone() for p in model.parameters()], torch.get_rng_state()


def test_parameters_after_five_steps_are_those_of_an_untracked_run_to_the_bit(transformers):
    plain, plain_state = gpt2_trained(transformers, lambda _: None)
    tracked, tracked_state = gpt2_trained(transformers, lambda model: Tracker(model, device=CPU, interval=0))
    assert all(torch.equal(a, b) for a, b in zip(plain, tracked, strict=True))
    assert torch.equal(plain_state, tracked_state)


@pytest.mark.parametrize("writer", ["a string", 7, {"writer": 1}, b"bytes"])
def test_something_that_is_no_writer(writer, caplog):
    model = Model()
    tracker = Tracker(model, device=CPU)
    for step in range(1, 4):
        model(tokens())
        tracker.log(step, writer)
    tracker.close()
    assert len(caplog.records) == 1
    assert hooks_of(model) == 0


def test_logged_from_another_thread(caplog):
    model = Model()
    tracker = Tracker(model, device=CPU, interval=0)
    model(tokens())
    in_thread(lambda: tracker.log(1))
    assert len(caplog.records) == 1
    model(tokens()).sum().backward()
    tracker.log(2)
    tracker.close()
    assert hooks_of(model) == 0


def test_closed_from_another_thread_takes_out_what_it_can_and_the_rest_at_the_next_call():
    model = Model()
    tracker = Tracker(model, device=CPU, interval=0)
    model(tokens())
    in_thread(tracker.close)
    assert hooks_of(model) == 0
    model(tokens()).sum().backward()
    tracker.close()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_an_error_of_the_training_itself_passes_and_tracking_goes_on(error):
    model = Model()
    tracker = Tracker(model, device=CPU, interval=0)
    for step in range(4):
        with suppress(error):
            model(tokens())
            raise error
        tracker.log(step)
    assert tracker.running
    model(tokens())
    tracker.log(9)
    tracker.close()
    assert tracker.last_step is not None


def test_tokens_that_are_not_tensors_and_a_model_that_returns_nothing():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, *args, **kwargs):
            return None if args else [self.weight.sum().item()]

    model = Odd()
    tracker = Tracker(model, device=CPU, interval=0)
    for step, given in enumerate(("text", None, {"a": [1.5]}, object(), torch.ones(0))):
        model(given)
        model()
        tracker.log(step)
    assert tracker.running
    tracker.close()


@pytest.mark.parametrize("models", [nn.Module(), []], ids=["no parameters", "no models"])
def test_models_without_modules(models):
    tracker = Tracker(models, device=CPU, interval=0)
    torch.ones(2).neg()
    tracker.log(1)
    assert tracker.running
    assert tracker.last_step.structure.analysis.totals.calls == 2
    tracker.close()


def test_nothing_ran_in_an_iteration():
    tracker = Tracker(Model(), device=CPU, interval=1)
    for step in range(4):
        tracker.log(step)
    assert tracker.running
    tracker.close()
