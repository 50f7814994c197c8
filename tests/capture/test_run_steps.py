"""Steps of a script: cycles of optimizers, what lay between, which steps are alike. In nanoseconds by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.records.timeline import RunStep, StepKind
from rooflight.roofline.tables.run import calls_of
from rooflight.sources.capture.run.steps import Steps


def made(*calls):
    """Steps of (begin, end, caller, backwards, nodes, loader, evaluation, checkpoint) in milliseconds."""
    steps = Steps()
    for begin, end, caller, backwards, nodes, *known, line in (
        each if len(each) > 8 else (*each, "") for each in calls
    ):
        steps.add(begin * 10**6, end * 10**6, caller, backwards, nodes, tuple(each * 10**6 for each in known), line)
    return steps


def test_one_optimizer_and_what_lay_between():
    steps = made((0, 10, 0, 1, 5, 0, 0, 0), (30, 40, 0, 1, 5, 15, 0, 0), (100, 120, 0, 1, 5, 25, 40, 5))
    assert steps.cycle() == 1
    assert steps.seconds().tolist() == pytest.approx([0.01, 0.01, 0.02])
    between = {each.name: (each.seconds, each.share) for each in steps.between(1, range(3))}
    # 20 + 60 ms in two gaps, 30 ms in their steps
    assert between["loader"] == pytest.approx((0.0125, 25 / 110))
    assert between["evaluation"] == pytest.approx((0.02, 40 / 110))
    assert between["checkpoint"] == pytest.approx((0.0025, 5 / 110))
    assert between["other"] == pytest.approx((0.005, 10 / 110))


@pytest.mark.parametrize(("each", "name"), [(1, "calls without gradients"), (2, "evaluation")])
def test_calls_without_gradients_before_most_steps_are_no_evaluation(each, name):
    steps = made(*((20 * step, 20 * step + 10, 0, 1, 5, 0, 4 * (step // each), 0) for step in range(9)))
    (calls, other) = steps.between(1, range(9))
    assert (calls.name, other.name) == (name, "other")
    assert calls.seconds == pytest.approx(0.004 / each)


def test_only_the_steps_that_count_and_what_lay_before_them():
    steps = made((0, 10, 0, 1, 5, 0, 0, 0), (30, 90, 0, 1, 5, 20, 0, 0), (100, 110, 0, 1, 5, 25, 0, 0))
    (loader, other) = steps.between(1, {2})
    assert (loader.name, loader.seconds, other.seconds) == ("loader", pytest.approx(0.005), pytest.approx(0.005))
    assert (loader.share, other.share) == (pytest.approx(0.25), pytest.approx(0.25))  # of 10 ms and its step of 10 ms


@pytest.mark.parametrize(
    ("callers", "cycle"),
    [
        ([0, 0, 0], 1),
        ([0, 1], None),
        ([0, 1, 0, 1], 2),
        ([0, 0, 1, 0, 0, 1], 3),
        ([0, 0, 0, 0, 0, 1, 0, 0], None),
        ([0, 1, 2, 3] * 2, 4),
        ([0, 0, 0, 0, 1, 1, 1, 1], None),
    ],
)
def test_cycles(callers, cycle):
    steps = made(*((place, place + 1, caller, 1, 1, 0, 0, 0) for place, caller in enumerate(callers)))
    assert steps.cycle() == cycle


def test_a_cycle_is_one_step_and_an_unfinished_one_is_left_out():
    steps = made(*((10 * place, 10 * place + 4, place % 2, 1, 3, 0, 0, 0) for place in range(5)))
    assert steps.seconds(2).tolist() == pytest.approx([0.014, 0.014])
    assert steps.sizes(2) == [(2, 6, 0), (2, 6, 0)]
    assert steps.calls_of() == {0: 3, 1: 2}


def test_unequal_steps():
    steps = made(*((10 * place, 10 * place + 1 + place, 0, 1, 5 + place % 2, 0, 0, 0) for place in range(5)))
    first, second = steps.alike(1, 2, lambda places: [place for place in places if place != 2])
    assert (first.count, first.nodes, first.recorded, first.median_s) == (3, 5, True, pytest.approx(0.003))
    assert (second.count, second.nodes, second.recorded) == (2, 6, False)


@given(
    st.lists(st.tuples(*[st.integers(0, 1000)] * 4), min_size=2, max_size=30),
    st.integers(1, 4),
)
def test_steps_and_what_lies_between_are_the_time_of_the_loop(parts, cycle):
    steps, now, known = Steps(), 1, [0, 0, 0]
    for place, (step, loader, evaluation, other) in enumerate(parts):
        if place and place % cycle == 0:  # within a cycle nothing is told apart
            known[0] += loader
            known[1] += evaluation
            now += loader + evaluation + other
        steps.add(now, now + step, place % cycle, 1, 1, tuple(known))
        now += step
    whole = len(parts) // cycle
    between = steps.between(cycle, range(whole))
    if between:
        seconds = steps.seconds(cycle)
        begins = sum(
            sum(each) if place and place % cycle == 0 else each[0] for place, each in enumerate(parts[: whole * cycle])
        )
        loop = begins * 1e-9 - seconds[0]
        assert sum(each.seconds for each in between) * (whole - 1) + seconds[1:].sum() == pytest.approx(loop)
        assert 0 < sum(each.share for each in between) <= 1.000001


@pytest.mark.parametrize(
    ("callers", "backwards", "lines", "turns", "said"),
    [
        ([0], [1], "a", 1, "one call of Adam.step"),
        ([0, 1], [2, 1], "ab", 1, "one call of Adam.step"),  # of a GAN
        ([0, 0, 0, 1], [4, 0, 0, 0], "aaaa", 1, "one call of Adam.step"),  # three of a class, at one line
        ([1, 0, 1], [1, 1, 0], "aaa", 2, "2 turns of the loop, with Adam.step"),  # one of two in every second turn
        ([0, 1], [1, 1], "aa", 2, "2 turns of the loop, with Adam.step"),  # two that take turns
        ([0, 0, 0, 1], [1, 1, 1, 1], "aaab", 3, "3 turns of the loop, with Adam.step"),  # a critic
    ],
)
def test_how_many_turns_of_the_loop_a_step_is(callers, backwards, lines, turns, said):
    parts = enumerate(zip(callers, backwards, lines, strict=True))
    calls = [(place, place + 1, caller, ran, 1, 0, 0, 0, line) for place, (caller, ran, line) in parts]
    found = made(*calls, *calls, (*calls[0][:-1], "elsewhere")).turns(len(callers))
    assert found == turns
    step = RunStep(kind=StepKind.OPTIMIZER, name="Adam.step", where="", count=2, begins="", recorded=1, turns=found)
    assert calls_of(step) == said


@pytest.mark.parametrize(
    ("turns", "lengths", "place"),
    [
        (["0", "110", "0", "110"], [1, None, None, None, None, None, None, 4], (2, 0)),  # seen twice
        (["0", "1"] * 2 + ["1", "1", "0", "1", "0", "1"], [1, None, None, 2, None, None, None, None, 2, 2], (4, 1)),
        (["10", "10", "0"], [1, None, None, 2, None], (5, 0)),  # strays
    ],
)
def test_a_cycle_is_followed_until_a_call_strays_and_begins_with_a_turn(turns, lengths, place):
    steps, found = Steps(), []
    for turn in turns:
        for part, caller in enumerate(turn):
            steps.add(0, 1, int(caller), part == 0, 1, (0, 0, 0), "a.py:1")
            steps.follow()
            found.append(steps.length)
    assert found == lengths
    assert steps.place == place


def test_an_evaluation_between_two_turns_of_a_step_is_noticed_and_one_between_steps_is_not():
    steps = Steps()
    for call in range(10):
        if call in (5, 8):
            steps.interrupt()
        steps.add(call, call + 1, call % 2, 1, 1, (0, 0, 0), "a.py:1")
        steps.follow()
        if call >= 3 and call % 2:
            assert steps.whole == (call != 5)


def test_no_step_is_one_turn():
    assert made().turns(1) == 1


def test_steps_of_inputs_about_as_large_are_of_one_size():
    steps = Steps()
    for place, elements in enumerate([100, 110, 124, 130, 400, 0, 100]):
        steps.add(10 * place, 10 * place + 5, 0, 1, 3, (0, 0, 0), "", elements)
    assert [size for _, _, size in steps.sizes()] == [100, 100, 100, 130, 400, 0, 100]
    assert steps.alike(1, 0, lambda places: places)[0].count == 4


def test_of_several_inputs_in_a_step_the_first_says_nothing():
    steps = Steps()
    steps.add(0, 5, 0, 4, 3, (0, 0, 0), "", 512)
    assert steps.sizes() == [(4, 3, 0)]


def test_iterations_hold_what_lay_before_but_evaluations():
    steps = made((0, 10, 0, 1, 5, 0, 0, 0), (30, 40, 0, 1, 5, 15, 0, 0), (100, 120, 0, 1, 5, 25, 40, 5))
    first, *others = steps.iterations(1)
    assert math.isnan(first)
    assert others == pytest.approx([0.03, 0.035])  # 40 to 120, of which 45 are none of it


def test_the_size_that_takes_longest_in_sum_is_the_one_to_record():
    steps = Steps()
    for place, elements in enumerate([100, 400, 100, 400, 100]):
        took = 1000 if place == 2 else elements  # recorded
        steps.add(10**4 * place, 10**4 * place + took, 0, 1, 3, (0, 0, 0), "", elements)
    assert steps.unequal
    assert steps.of_the_longest_size(2, 100) is False
    assert steps.of_the_longest_size(2, 420) is None
    assert steps.of_the_longest_size(3, 100) is True
