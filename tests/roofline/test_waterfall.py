from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.roofline.program import waterfall_of

SECONDS = st.floats(min_value=0, max_value=1e6, allow_nan=False)


def test_each_level_is_a_gap_above_the_one_before():
    gaps = waterfall_of(program_bound_s=1.0, fused_bound_s=3.0, op_bound_s=4.0, ops_measured_s=9.0, measured_s=10.0)
    assert [(gap.seconds, gap.until_s) for gap in gaps] == [(1, 1), (2, 3), (1, 4), (5, 9), (1, 10)]
    assert [gap.name for gap in gaps] == [
        "program bound",
        "no overlap, no reuse between kernels",
        "data movement that fusion would save",
        "kernels slower than their bound",
        "overhead and idle",
    ]
    assert all(gap.remedy for gap in gaps)


def test_without_measurement_it_ends_at_the_op_bound():
    gaps = waterfall_of(program_bound_s=1.0, fused_bound_s=2.0, op_bound_s=4.0)
    assert [gap.until_s for gap in gaps] == [1, 2, 4]


def test_without_op_times_kernels_and_overhead_are_one_gap():
    *_, last = waterfall_of(program_bound_s=1.0, fused_bound_s=2.0, op_bound_s=4.0, measured_s=10.0)
    assert (last.name, last.seconds) == ("kernels and overhead", 6)


def test_ops_that_took_longer_than_the_step_are_not_told_apart_from_overhead():
    *_, last = waterfall_of(
        program_bound_s=1.0, fused_bound_s=2.0, op_bound_s=4.0, ops_measured_s=12.0, measured_s=10.0
    )
    assert (last.name, last.seconds, last.until_s) == ("kernels and overhead", 6, 10)


def test_a_step_faster_than_its_ops_ran_fused():
    *_, last = waterfall_of(program_bound_s=1.0, fused_bound_s=2.0, op_bound_s=4.0, measured_s=3.0)
    assert (last.name, last.seconds, last.until_s) == ("saved by fusion and overlap", -1, 3)


def test_a_step_faster_than_its_program_bound_is_a_contradiction():
    *_, last = waterfall_of(program_bound_s=1.0, fused_bound_s=2.0, op_bound_s=4.0, measured_s=0.5)
    assert (last.name, last.seconds, last.until_s) == ("contradiction: step faster than its program bound", -3.5, 0.5)


@pytest.mark.parametrize(
    ("measured_s", "name"),
    [
        (2.5, "saved by fusion and overlap"),
        (0.9, "saved by a warm cache"),
        (0.3, "contradiction: step faster than its program bound"),
    ],
)
def test_a_cache_of_unknown_bandwidth_may_serve_what_is_faster_than_light(measured_s, name):
    *_, last = waterfall_of(
        program_bound_s=1.0, fused_bound_s=2.0, op_bound_s=4.0, measured_s=measured_s, warm_program_bound_s=0.5
    )
    assert (last.name, last.until_s) == (name, measured_s)


@pytest.mark.parametrize(
    ("ops_s", "name"), [(3.5, "saved by a warm cache"), (2.9, "contradiction: kernels faster than their bound")]
)
def test_ops_may_be_served_by_a_cache_too(ops_s, name):
    *_, kernels, _ = waterfall_of(
        program_bound_s=1.0,
        fused_bound_s=2.0,
        op_bound_s=4.0,
        ops_measured_s=ops_s,
        measured_s=5.0,
        warm_op_bound_s=3.0,
    )
    assert (kernels.name, kernels.until_s) == (name, ops_s)


def test_ops_faster_than_their_bound_are_a_contradiction_unless_some_have_no_time():
    for all_timed, name in (
        (True, "contradiction: kernels faster than their bound"),
        (False, "kernels, some of them without a time"),
    ):
        *_, kernels, overhead = waterfall_of(
            program_bound_s=1.0,
            fused_bound_s=2.0,
            op_bound_s=4.0,
            ops_measured_s=3.0,
            measured_s=5.0,
            all_timed=all_timed,
        )
        assert (kernels.name, kernels.seconds, kernels.until_s) == (name, -1, 3)
        assert (overhead.name, overhead.seconds) == ("overhead and idle", 2)


@given(SECONDS, SECONDS, SECONDS, st.none() | SECONDS, st.none() | SECONDS)
def test_the_gaps_sum_to_the_last_level(program_s, fused_s, op_s, ops_measured_s, measured_s):
    gaps = waterfall_of(
        program_bound_s=program_s,
        fused_bound_s=fused_s,
        op_bound_s=op_s,
        ops_measured_s=ops_measured_s,
        measured_s=measured_s,
    )
    last = next(level for level in (measured_s, ops_measured_s, op_s) if level is not None)
    assert gaps[-1].until_s == last
    if program_s <= fused_s <= op_s:  # as bounds are: whatever is negative then says so by its name
        named = ("contradiction: ", "saved by fusion")
        assert all(gap.seconds >= 0 or gap.name.startswith(named) for gap in gaps)
    assert sum(gap.seconds for gap in gaps) == pytest.approx(last, abs=1e-6)
