"""Phases: nested, raised, decorated, by thread, and as NVTX ranges where there is CUDA."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from recorded_model import in_thread

import rooflight as rl
from rooflight.sources.capture import phases
from rooflight.sources.capture.phases import current_phase, subscribe, unsubscribe


@pytest.fixture
def told() -> Iterator[list[str]]:
    names: list[str] = []
    listener = names.append
    subscribe(listener)
    yield names
    unsubscribe(listener)


def test_the_innermost_counts(told):
    assert current_phase() == ""
    with rl.phase("outer"):
        with rl.phase("inner"):
            assert current_phase() == "inner"
        assert current_phase() == "outer"
    assert current_phase() == ""
    assert told == ["outer", "inner", "outer", ""]


def test_one_phase_inside_itself_and_used_again(told):
    again = rl.phase("a")
    with again, again:
        assert current_phase() == "a"
    with again:
        pass
    assert told == ["a", "a", "a", "", "a", ""]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_phase_that_raised_is_over(error):
    def run():
        with rl.phase("outer"), rl.phase("inner"):
            raise error

    with pytest.raises(error):
        run()
    assert current_phase() == ""


def test_a_phase_that_an_interrupt_left_open_ends_with_the_one_around_it(told):
    with rl.phase("outer"):
        rl.phase("left open").__enter__()
    assert current_phase() == ""
    assert told[-1] == ""


def test_a_function_is_a_phase_each_time_it_is_called():
    @rl.phase("load")
    def load(depth: int) -> list[str]:
        """Load."""
        return [current_phase(), *(load(depth - 1) if depth else [])]

    assert load(2) == ["load"] * 3
    assert load.__doc__ == "Load."
    assert current_phase() == ""


def test_a_phase_needs_a_name():
    with pytest.raises(ValueError, match="needs a name"):
        rl.phase("")


def test_the_name_of_the_page_is_the_same_thing():
    with rl.sol_nvtx_range("rl/train/forward"), rl.record() as recording:
        torch.ones(2)
    assert {op.phase for op in recording.session.records} == {"rl/train/forward"}


def test_phases_of_a_recording_begin_and_end_inside_and_around_it():
    with rl.phase("around"), rl.record() as recording:
        torch.ones(2)
        with suppress(ZeroDivisionError), rl.phase("inside"):
            torch.ones(3)
            _ = 1 / 0
        torch.ones(4)
    shapes = [(op.phase, op.signature.outputs[0].shape) for op in recording.session.records]
    assert shapes == [("around", (2,)), ("inside", (3,)), ("around", (4,))]


def test_a_backward_pass_belongs_to_the_phase_that_runs_it():
    weight = torch.ones(3, requires_grad=True)
    with rl.record() as recording:
        with rl.phase("forward"):
            loss = (weight * 2).sum()
        with rl.phase("backward"):
            loss.backward()
    assert {op.phase for op in recording.session.records if op.direction.label == "backward"} == {"backward"}


def test_phases_belong_to_their_thread(told):
    seen: list[str] = []

    def other() -> None:
        seen.append(current_phase())
        with rl.phase("theirs"):
            seen.append(current_phase())

    with rl.phase("ours"):
        in_thread(other)
        assert current_phase() == "ours"
    assert seen == ["", "theirs"]
    assert told == ["ours", ""]


def test_a_listener_that_unsubscribes_itself_while_told(told):
    def once(name: str) -> None:
        unsubscribe(once)

    subscribe(once)
    with rl.phase("a"):
        pass
    unsubscribe(once)
    assert told == ["a", ""]


class Ranges:
    """Stands in for torch.cuda.nvtx."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.seen: list[str] = []

    def range_push(self, name: str) -> None:
        self.open.append(name)
        self.seen.append(name)

    def range_pop(self) -> None:
        self.open.pop()


@pytest.fixture
def nvtx(monkeypatch: pytest.MonkeyPatch) -> Ranges:
    ranges = Ranges()
    monkeypatch.setattr(phases, "_nvtx", ranges)
    return ranges


def test_on_cuda_a_phase_is_a_range(nvtx):
    with rl.phase("outer"):
        with rl.phase("inner"):
            assert nvtx.open == ["outer", "inner"]
        assert nvtx.open == ["outer"]
    assert nvtx.open == []
    assert nvtx.seen == ["outer", "inner"]


def test_ranges_that_an_interrupt_left_open_are_closed_with_the_one_around_them(nvtx):
    with rl.phase("outer"):
        rl.phase("left open").__enter__()
        rl.phase("too").__enter__()
    assert nvtx.open == []
    with rl.phase("next"):
        assert nvtx.open == ["next"]
    assert nvtx.open == []


def test_a_phase_that_began_before_cuda_was_used_pops_no_range_of_others(monkeypatch):
    ranges: Any = Ranges()
    ranges.range_push("the user's own")
    with rl.phase("outer"):
        monkeypatch.setattr(phases, "_nvtx", ranges)
        with rl.phase("inner"):
            assert ranges.open == ["the user's own", "inner"]
        assert ranges.open == ["the user's own"]
    assert ranges.open == ["the user's own"]
