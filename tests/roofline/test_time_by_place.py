"""Seconds by place beside bounds: shares sum to the whole, what no place has is a row, nothing is dropped."""

from dataclasses import replace

import pytest
from builders import op, spec
from hypothesis import given
from hypothesis import strategies as st
from sessions import Call, session_of

from rooflight.devices import get
from rooflight.roofline.analysis import analyze
from rooflight.roofline.time_by_place import (
    UNATTRIBUTED,
    contradictions,
    modules_table,
    places_table,
    time_by_place,
    whole_contradiction,
    whole_time,
)

H100 = get("H100-SXM5-80GB")
BIG = spec((8192, 8192), "bfloat16")
MM = op("aten::mm", {"self": BIG, "mat2": BIG}, [BIG])
MM_S = 2 * 8192**3 / 989.4e12  # 1.11 ms
LONG = spec((1 << 28,))
ADD = op("aten::add", {"self": LONG, "other": LONG}, [LONG])
ADD_S = 3 * 4 * 2**28 / 3.35e12  # 0.96 ms
CALLS = [Call(op=MM, module="up", layer="Linear"), Call(op=ADD, module="res", layer="Residual")]
STEP = analyze(session_of(CALLS), H100)


def test_places_stand_beside_their_bounds():
    times = time_by_place(STEP, "layer", {"Linear": 4e-3, "Residual": 1e-3})
    assert times.whole_s == pytest.approx(5e-3)  # no other whole is known: the sum
    assert times.unattributed_s == 0
    linear, residual = times.places
    assert (linear.name, linear.calls, linear.limiter) == ("Linear", 1, "compute")
    assert linear.bound_s == pytest.approx(MM_S)
    assert linear.efficiency == pytest.approx(MM_S / 4e-3)
    assert linear.share == pytest.approx(0.8)
    assert residual.efficiency == pytest.approx(ADD_S / 1e-3)
    assert residual.limiter == "memory"
    assert times.faster_than_bound == ()


def test_time_of_no_place_is_a_row_so_that_shares_sum_to_one():
    times = time_by_place(STEP, "layer", {"Linear": 4e-3, "Residual": 1e-3}, whole_s=10e-3)
    assert times.places[0].name == UNATTRIBUTED  # the longest first
    assert times.unattributed_s == pytest.approx(5e-3)
    assert [place.share for place in times.places] == pytest.approx([0.5, 0.4, 0.1])


def test_places_that_overlap_leave_nothing_unattributed():
    times = time_by_place(STEP, "layer", {"Linear": 4e-3, "Residual": 4e-3}, whole_s=5e-3)
    assert [place.share for place in times.places] == pytest.approx([0.8, 0.8])
    assert times.unattributed_s == 0


def test_time_passes_where_no_op_was_recorded_and_ops_run_where_no_time_was_taken():
    times = time_by_place(STEP, "layer", {"Linear": 4e-3, "Container": 1e-3})
    by_name = {place.name: place for place in times.places}
    assert [place.name for place in times.places] == ["Linear", "Container", "Residual"]
    container, residual = by_name["Container"], by_name["Residual"]
    assert (container.calls, container.bound_s, container.efficiency, container.limiter) == (0, None, None, None)
    assert container.share == pytest.approx(0.2)
    assert (residual.measured_s, residual.efficiency, residual.share) == (None, None, None)
    assert residual.bound_s == pytest.approx(ADD_S)


def test_without_seconds_the_times_are_those_of_the_ops():
    timed = analyze(session_of(CALLS, times=[[3e-3, 2e-3]], walls=[6e-3]), H100)
    linear, residual = time_by_place(timed, "layer").places
    assert (linear.measured_s, residual.measured_s) == (3e-3, 2e-3)
    assert (linear.share, residual.share) == pytest.approx((0.6, 0.4))  # of the ops' 5 ms
    assert linear.efficiency == pytest.approx(MM_S / 3e-3)
    in_step = time_by_place(timed, "layer", whole_s=6e-3)
    assert in_step.unattributed_s == pytest.approx(1e-3)


def test_nothing_measured_is_unknown_and_not_zero():
    times = time_by_place(STEP, "layer")
    assert (times.whole_s, times.unattributed_s) == (None, None)
    assert [(place.name, place.measured_s, place.share) for place in times.places] == [
        ("Linear", None, None),  # by bound: 1.11 ms, then 0.96 ms
        ("Residual", None, None),
    ]


def test_a_place_faster_than_its_bound_is_a_contradiction():
    times = time_by_place(STEP, "layer", {"Linear": 1e-3, "Residual": 1e-3})
    assert [place.name for place in times.faster_than_bound] == ["Linear"]  # 1.11 ms in 1 ms


def test_a_compiled_place_may_beat_its_op_bound():
    environment = {**STEP.session.environment, "compiled": "yes"}
    compiled = analyze(replace(STEP.session, environment=environment), H100)
    for analysis, cause in ((STEP, "a cost, a roof or a clock is wrong"), (compiled, "its ops can have been merged")):
        (told,) = contradictions(time_by_place(analysis, "layer", {"Linear": 1e-5}))
        assert cause in told


def test_an_unknown_key_is_refused():
    with pytest.raises(ValueError, match='no roll-up by "colour"'):
        time_by_place(STEP, "colour")


def test_tables_and_data_have_the_same_rows():
    times = time_by_place(STEP, "layer", {"Linear": 4e-3, "Container": 1e-3}, whole_s=6e-3)
    table, data = places_table(times, title="By layer type", top=2), times.places
    assert table.id == "by_layer"
    assert table.values("layer") == tuple(row.name for row in data) == ("Linear", "Container", UNATTRIBUTED, "Residual")
    assert table.values("measured") == tuple(row.measured_s for row in data)
    assert sum(row.share or 0.0 for row in data) == pytest.approx(1)
    assert table.left_out == 2
    assert table.values("intensity") == tuple(row.group and row.group.arithmetic_intensity for row in data)
    modules = modules_table(time_by_place(STEP, "module"), {"up": "Linear"}, title="Modules", top=9)
    assert modules.rows[0] == ("up", "Linear", pytest.approx(MM_S), None, None, "compute")


seconds = st.dictionaries(
    st.sampled_from(["Linear", "Residual", "Container", "(outside modules)"]), st.floats(1e-9, 1e3)
)


@given(seconds, st.floats(0, 1e3))
def test_shares_sum_to_one_whatever_the_times(found, more):
    whole_s = sum(found.values()) + more
    times = time_by_place(STEP, "layer", found, whole_s=whole_s)
    if whole_s:
        # what is below a millionth of the whole may be left by adding up floats
        assert sum(place.share or 0.0 for place in times.places) == pytest.approx(1, abs=2e-6)
    assert {place.name for place in times.places} - {UNATTRIBUTED} == {"Linear", "Residual", *found}


def test_a_whole_step_beside_its_bounds():
    step = analyze(session_of([Call(op=MM, reads=(0, 1), writes=(2,)), Call(op=ADD, reads=(3, 4), writes=(5,))]), H100)
    whole = whole_time(step, 10e-3)
    assert whole.op_bound_s == whole.bound_s == pytest.approx(MM_S + ADD_S)
    assert whole.limiter == "compute"  # most of it is the product's
    # all at once: the product's arithmetic beside 3 matrices of bfloat16 and 3 long vectors of float32
    assert whole.compulsory_bytes == 3 * 2 * 8192**2 + 3 * 4 * 2**28
    assert whole.compulsory_bytes / 3.35e12 < MM_S
    assert whole.program_bound_s == pytest.approx(MM_S)
    assert whole.efficiency == pytest.approx((MM_S + ADD_S) / 10e-3)
    assert whole_contradiction(whole) == ""
    assert whole_time(step).efficiency is None  # nobody measured it


def test_a_step_faster_than_its_bound_has_a_cause():
    short = spec((1 << 20,))  # 4 MB: the L2 of 50 MB holds all of it
    add = op("aten::add", {"self": short, "other": short}, [short])
    exp = op("aten::exp", {"self": short}, [short])
    step = analyze(session_of([Call(op=add, reads=(0, 1), writes=(2,)), Call(op=exp, reads=(2,), writes=(3,))]), H100)
    part = 4 * 2**20 / 3.35e12
    assert whole_time(step).op_bound_s == pytest.approx(5 * part)
    assert whole_time(step).program_bound_s == pytest.approx(3 * part)
    merged, cached, impossible = (whole_contradiction(whole_time(step, s)) for s in (4 * part, 2 * part, 1e-9))
    assert "the step took 5.01 µs, less than its bound of 6.26 µs: its ops can have been merged or over" in merged
    assert "its data can have come from a cache" in cached
    assert impossible.endswith("did other work than the one recorded.")
