"""What is known of the time between steps, at moments that the test sets."""

from __future__ import annotations

import pytest

from rooflight.sources.capture.run.outcome import _undisturbed
from rooflight.sources.capture.run.waits import Waits


def fetched(waits, data, begin, end):
    waits.fetched(waits.fetch(data, begin), end)


def test_a_loader_of_training_data_is_waited_for_and_one_of_data_that_a_model_evaluates_is_not():
    waits, train, held_out = Waits(), 1, 2
    fetched(waits, train, 10, 30)
    waits.trains()
    fetched(waits, train, 50, 55)
    waits.trains()
    assert waits.known(60) == (25, 0, 0)
    fetched(waits, held_out, 70, 80)
    waits.evaluates(85)  # its loader is part of the evaluation
    fetched(waits, held_out, 90, 95)
    assert waits.known(100) == (25, 30, 0)
    fetched(waits, train, 110, 111)  # ends it
    assert waits.known(200) == (26, 40, 0)
    assert waits.last_event == 111
    waits.trains()
    fetched(waits, held_out, 300, 310)  # still no training data
    waits.evaluates(320)
    assert waits.known(330) == (26, 70, 0)


def test_data_that_no_model_evaluates_is_trained_on():
    waits, first, second, later = Waits(), 1, 2, 3
    for begin in (10, 110):  # two loaders a step
        fetched(waits, first, begin, begin + 20)
        fetched(waits, second, begin + 20, begin + 30)
        waits.trains()
    fetched(waits, later, 210, 230)  # a data set that is made anew for each epoch
    assert waits.other_data_since == 210
    waits.trains()
    assert waits.other_data_since == 0
    fetched(waits, later, 310, 311)
    assert waits.known(400) == (81, 0, 0)


def test_a_teacher_is_asked_of_what_is_trained_on():
    waits, first, second, later = Waits(), 1, 2, 3
    for begin, data in ((10, first), (110, first), (210, later), (310, later)):
        fetched(waits, data, begin, begin + 20)
        fetched(waits, second, begin + 20, begin + 30)
        waits.evaluates(begin + 40, counts=begin > 10)
        waits.end_evaluation(begin + 50)
        waits.trains()
    # loaders 4 x 30, the teacher 3 x 10; that ``later`` is no evaluated data shows only after its first step
    assert waits.known(400) == (120 - 30, 30 + 30 + 10, 0)


def test_what_is_evaluated_before_the_first_step_is_no_training_data():
    waits, train, held_out = Waits(), 1, 2
    fetched(waits, held_out, 10, 20)
    waits.evaluates(20, counts=False)
    fetched(waits, train, 30, 40)
    waits.trains()
    fetched(waits, held_out, 50, 60)
    waits.evaluates(60)
    assert waits.known(70) == (20, 20, 0)


def test_a_checkpoint_within_an_evaluation_is_none_of_it():
    waits = Waits()
    waits.evaluates(10)
    waits.evaluates(20)  # goes on
    waits.saved(30, 50)
    assert waits.known(60) == (0, 30, 20)
    waits.end_evaluation(70)
    assert waits.known(100) == (0, 40, 20)


def test_what_began_within_a_step_is_not_counted():
    waits = Waits()
    waits.fetched(0, 50)
    waits.saved(0, 50)
    assert waits.known(60) == (0, 0, 0)


@pytest.mark.parametrize(
    ("skip", "taken", "count", "timed"),
    [
        (2, {0, 2}, 8, [4, 5, 6, 7]),  # 3 follows a recorded one
        (2, {0, 2}, 5, [3, 4]),  # too few are left for that
        (2, {1}, 2, [0]),  # none after the skipped ones
        (0, set(), 3, [0, 1, 2]),
        (0, {0}, 1, []),
    ],
)
def test_which_steps_are_timed(skip, taken, count, timed):
    assert _undisturbed(skip, taken, range(count)) == timed
