from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.records.quantity import Quantity, percent


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "FLOP", "0 FLOP"),
        (999, "B", "999 B"),
        (999.9, "B", "1.00 kB"),
        (1536, "B", "1.54 kB"),
        (2.08e16, "FLOP", "20.8 PFLOP"),
        (3.35e12, "B/s", "3.35 TB/s"),
        (5e21, "FLOP", "5000 EFLOP"),
        (1.11e-3, "s", "1.11 ms"),
        (59.96, "s", "60.0 s"),
        (0.9996, "s", "1.00 s"),
        (3e-13, "s", "<1 ns"),
        (float("nan"), "s", "unknown"),
        (0.5, "%", "50.0%"),
    ],
)
def test_numbers_read_as_people_write_them(value, unit, text):
    assert str(Quantity(value, unit)) == text


def test_a_share_is_never_rounded_to_all_or_nothing():
    assert percent(1.0) == "100%"
    assert percent(0.99999) == ">99.9%"
    assert percent(0) == percent(-0.0) == "0%"
    assert percent(1e-9) == "<0.1%"
    assert percent(1.25) == "125.0%"


def test_small_losses_have_no_negative_zero():
    assert (percent(-0.0001), percent(-0.01), percent(0.0001)) == (">-0.1%", "-1.0%", "<0.1%")


@given(st.floats(1e-15, 1e22))
def test_three_digits_are_within_half_a_percent(value):
    number, prefixed = str(Quantity(value, "B/s")).split(" ")
    factor = {"E": 1e18, "P": 1e15, "T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3, "B": 1}[prefixed[0]]
    assert abs(float(number) * factor - value) <= max(0.0051 * value, 0.0051)
