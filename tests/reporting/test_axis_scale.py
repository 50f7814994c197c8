"""Scales of axes, by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.reporting.chart import scale_of


def test_a_linear_scale_begins_at_zero_and_has_round_ticks():
    scale = scale_of([3.0, 12.0], start=0, end=120)
    assert (scale.low, scale.high) == (0, 12)
    assert scale.at(3) == 30  # 3 / 12 of 120
    assert scale.ticks == (0, 2, 4, 6, 8, 10, 12)  # 12 / 7 = 1.7: the next of 1, 2, 5


def test_values_below_zero_are_shown():
    scale = scale_of([-1.0, 3.0], start=0, end=100)
    assert scale.at(-1) == 0
    assert scale.at(0) == 25


def test_a_logarithmic_scale_has_decades_and_leaves_out_zero():
    scale = scale_of([0.0, 1.0, 1000.0], start=0, end=90, logarithmic=True)
    assert scale.at(10) == pytest.approx(30)
    assert scale.ticks == pytest.approx((1, 10, 100, 1000))


def test_an_axis_may_run_upward():
    assert scale_of([10.0], start=200, end=0).at(5) == 100


values = st.lists(st.floats(-1e15, 1e15).filter(lambda value: value == 0 or abs(value) > 1e-15), max_size=20)


@given(values, st.booleans())
def test_every_value_is_inside_and_ticks_are_few(found, logarithmic):
    scale = scale_of(found, start=10, end=110, logarithmic=logarithmic)
    for value in found:
        if not logarithmic or value > 0:
            assert 10 - 1e-6 <= scale.at(value) <= 110 + 1e-6
    assert len(scale.ticks) <= 8
