"""Timing: samples are kept as they came, and the stopping rule is exact on a fake clock."""

import math

import pytest
from fake_clock import FakeClock
from hypothesis import given
from hypothesis import strategies as st

from rooflight.hardware.machine.timing import SteadyClock, Timing, measure

SECONDS = st.floats(min_value=1e-9, max_value=1e3)


def test_statistics_are_derived_from_the_samples():
    timing = Timing(samples_s=(4.0, 1.0, 2.0, 3.0, 5.0))
    assert timing.median_s == 3.0
    assert timing.minimum_s == 1.0
    # quartiles of 1..5 are 2 and 4: (4 - 2) / 3
    assert timing.spread == 2 / 3
    assert timing.samples_s == (4.0, 1.0, 2.0, 3.0, 5.0)


@given(st.lists(SECONDS, min_size=1))
def test_the_minimum_bounds_the_median_and_the_spread_is_not_negative(samples_s):
    timing = Timing(samples_s=tuple(samples_s))
    assert timing.minimum_s <= timing.median_s <= max(samples_s)
    assert timing.spread >= 0


@given(st.lists(SECONDS, min_size=2), st.sampled_from([0.5, 2.0, 1024.0]))
def test_the_spread_has_no_unit(samples_s, factor):
    scaled = Timing(samples_s=tuple(sample * factor for sample in samples_s))
    assert math.isclose(scaled.spread, Timing(samples_s=tuple(samples_s)).spread, rel_tol=1e-9, abs_tol=1e-12)


def test_one_sample_has_no_spread():
    assert Timing(samples_s=(1.0,)).spread == 0.0


def test_a_timing_without_samples_is_refused():
    with pytest.raises(ValueError, match="at least one sample"):
        Timing(samples_s=())


def test_a_steady_call_stops_after_the_least_samples():
    clock = FakeClock(call_s=0.001)
    timing = measure(lambda: None, clock=clock, spread=0.02, box_s=1.0, min_samples=5)
    assert timing.samples_s == (0.001,) * 5


def test_an_unsteady_call_uses_its_box():
    clock = FakeClock()
    lengths = iter(range(1, 1000))
    timing = measure(lambda: clock.advance(next(lengths)), clock=clock, spread=0.0, box_s=10.0, warmups=0)
    # 1 + 2 + 3 + 4 = 10 s ends the box
    assert timing.samples_s == (1.0, 2.0, 3.0, 4.0)


def test_the_box_includes_the_warm_up():
    clock = FakeClock()
    timing = measure(lambda: clock.advance(2.0), clock=clock, spread=0.0, box_s=5.0, warmups=1)
    # warm-up to 2 s, samples end at 4 s and 6 s
    assert timing.samples_s == (2.0, 2.0)


def test_a_call_longer_than_its_box_is_sampled_once():
    clock = FakeClock(call_s=7.0)
    assert measure(lambda: None, clock=clock, box_s=0.1).samples_s == (7.0,)


def test_zero_spread_takes_every_sample_allowed():
    clock = FakeClock(call_s=0.001)
    assert len(measure(lambda: None, clock=clock, spread=0.0, box_s=10.0, max_samples=40).samples_s) == 40


@pytest.mark.parametrize(
    "wrong", [{"box_s": 0}, {"min_samples": 0}, {"max_samples": 1}, {"spread": -0.1}, {"warmups": -1}]
)
def test_impossible_rules_are_refused(wrong):
    with pytest.raises(ValueError, match="timing needs"):
        measure(lambda: None, clock=FakeClock(), **wrong)


def test_what_the_call_raises_passes_through():
    def fail():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(fail, clock=FakeClock())


def test_the_steady_clock_goes_forward():
    clock = SteadyClock()
    before = clock.now_ns()
    took_s = clock.time_s(lambda: sum(range(1000)))
    after = clock.now_ns()
    assert 0 < took_s <= (after - before) / 1e9
