import numpy as np
import pytest
from builders import op, spec
from hypothesis import given
from sessions import Call, programs_of, session_of

from rooflight.devices import get
from rooflight.records.record import Direction
from rooflight.roofline.analysis import analyze

H100 = get("H100-SXM5-80GB")
MM = op("aten::mm", {"self": spec((4, 6), "bfloat16"), "mat2": spec((6, 5), "bfloat16")}, [spec((4, 5), "bfloat16")])
ADD = op("aten::add", {"self": spec((8,)), "other": spec((8,))}, [spec((8,))])
VIEW = op("aten::view", {"self": spec((8,), storage=0)}, [spec((2, 4), storage=0)])
ODD = op("nobody::knows", {"x": spec((10,))}, [spec((10,))])
BACKWARD, OPTIMIZER = Direction.BACKWARD, Direction.OPTIMIZER


def test_totals_sum_every_counted_call_once():
    analysis = analyze(session_of([Call(op=MM), Call(op=MM), Call(op=ADD), Call(op=VIEW)]), H100)
    assert analysis.totals.matrix_flops == 2 * 240  # 2 * 4 * 6 * 5 = 240
    assert analysis.totals.vector_flops == 8
    assert analysis.totals.bytes_moved == 2 * 2 * (24 + 30 + 20) + 3 * 32
    assert analysis.totals.calls == 4
    assert analysis.totals.measured_s is None
    assert analysis.totals.op_bound_s == pytest.approx((2 * 148 + 96) / 3.35e12)


def test_children_of_a_composite_are_not_counted_again():
    calls = [Call(op=MM, parent=1), Call(op=MM)]
    assert analyze(session_of(calls), H100).totals.matrix_flops == 240
    assert [group.calls for group in analyze(session_of(calls), H100).by("op")] == [1]


def test_what_has_no_formula_is_listed_and_lowers_the_coverage():
    coverage = analyze(session_of([Call(op=MM), Call(op=ADD), Call(op=VIEW), Call(op=ODD)]), H100).coverage
    assert coverage.calls == pytest.approx(0.75)
    # tensors: mm 148 B, add 96 B, view 32 B in and out of one storage each, odd 80 B
    assert coverage.bytes == pytest.approx(1 - 80 / (148 + 96 + 64 + 80))
    (missing,) = coverage.uncosted
    assert (missing.name, missing.reason, missing.calls, missing.bytes) == ("nobody::knows", "no formula", 1, 80)


def test_an_empty_session_has_no_coverage_and_costs_nothing():
    analysis = analyze(session_of([]), H100)
    assert analysis.coverage.calls is None
    assert analysis.coverage.bytes is None
    assert analysis.totals.op_bound_s == 0
    assert analysis.by("op") == analysis.by("module") == ()


def test_roll_ups_by_phase_module_layer_op_and_direction():
    calls = [
        Call(op=MM, module="h.0", layer="Linear"),
        Call(op=MM, module="h.1", layer="Linear"),
        Call(op=MM, module="h.0", layer="Linear", direction=BACKWARD),
        Call(op=ADD, direction=OPTIMIZER),
        Call(op=ADD, phase="loss"),
    ]
    analysis = analyze(session_of(calls), H100)
    flops = {key: {group.name: group.matrix_flops for group in analysis.by(key)} for key in ("module", "layer", "op")}
    assert flops["module"] == {"h.0": 480, "h.1": 240, "(optimizer)": 0, "(outside modules)": 0}
    assert flops["layer"] == {"Linear": 720, "(optimizer)": 0, "(outside modules)": 0}
    assert flops["op"] == {"aten::mm": 720, "aten::add": 0}
    calls_by = {key: {group.name: group.calls for group in analysis.by(key)} for key in ("phase", "direction")}
    assert calls_by["phase"] == {"(outside phases)": 2, "backward": 1, "optimizer": 1, "loss": 1}
    assert calls_by["direction"] == {"forward": 3, "backward": 1, "optimizer": 1}
    with pytest.raises(ValueError, match='no roll-up by "colour"'):
        analysis.by("colour")


def test_efficiency_is_bound_over_the_mean_step_and_the_medians_of_ops():
    calls = [Call(op=ADD), Call(op=ADD)]
    session = session_of(calls, times=[[1e-6, 2e-6], [3e-6, 2e-6], [2e-6, 8e-6]], walls=[5e-6, 6e-6, 9e-6])
    analysis = analyze(session, H100)
    assert analysis.totals.measured_s == pytest.approx(20e-6 / 3)
    assert analysis.totals.ops_measured_s == pytest.approx(4e-6)  # medians 2 µs and 2 µs
    (group,) = analysis.by("op")
    assert group.efficiency == pytest.approx(2 * 96 / 3.35e12 / 4e-6)
    (operation,) = analysis.operations
    assert operation.measured_s == pytest.approx(4e-6)


def test_a_call_faster_than_light_is_reported_and_not_clipped():
    session = session_of([Call(op=ADD), Call(op=ADD)], times=[[1e-15, 1.0]], walls=[1.0])
    analysis = analyze(session, H100)
    (found,) = analysis.contradictions
    assert found.calls == 1
    assert found.measured_s == 1e-15
    assert found.bound_s == pytest.approx(96 / 3.35e12)
    slow = analyze(session_of([Call(op=ADD)], times=[[96 / 3.35e12 * 1.01]], walls=[1.0]), H100)
    assert slow.contradictions == ()


def test_an_op_nobody_timed_has_no_time_rather_than_zero():
    analysis = analyze(session_of([Call(op=ADD), Call(op=MM)], times=[[np.nan, 1e-3]], walls=[1.0]), H100)
    times = {group.name: group.measured_s for group in analysis.by("op")}
    assert times == {"aten::add": None, "aten::mm": 1e-3}
    nothing = analyze(session_of([Call(op=ADD)], times=[[np.nan]], walls=[1.0]), H100)
    assert nothing.totals.ops_measured_s is None
    steps_only = analyze(session_of([Call(op=ADD)], times=[], walls=[1.0]), H100)
    assert steps_only.totals.measured_s == 1.0
    assert steps_only.totals.ops_measured_s is None


def test_counts_beyond_64_bits_stay_exact():
    huge = op(
        "aten::mm", {"self": spec((1 << 21, 1 << 21)), "mat2": spec((1 << 21, 1 << 21))}, [spec((1 << 21, 1 << 21))]
    )
    assert analyze(session_of([Call(op=huge)] * 3), H100).totals.matrix_flops == 3 * 2 * (1 << 63)


def test_unfollowed_memory_is_what_stands_plus_the_most_that_lives_at_once():
    calls = [
        Call(op=ADD, reads=(0,), writes=(1,)),  # 0 stood before; 1 lives from here to call 2
        Call(op=ADD, reads=(1,), writes=(2,)),
        Call(op=ADD, reads=(1, 2), writes=(3,)),
        Call(op=ADD, reads=(3,), writes=(4,)),
    ]
    memory = analyze(session_of(calls, storage_bytes=[1000, 10, 20, 40, 80]), H100).memory
    assert memory.standing_bytes == 1000
    assert memory.peak_bytes == 1000 + 40 + 80  # at the last call; before it 10 + 20 + 40


def test_an_in_place_write_does_not_make_a_standing_storage_temporary():
    memory = analyze(session_of([Call(op=ADD, reads=(0,), writes=(0,))], storage_bytes=[64]), H100).memory
    assert (memory.standing_bytes, memory.peak_bytes) == (64, 64)


@given(programs_of(MM, ADD, VIEW, ODD))
def test_parts_sum_to_the_whole(program):
    analysis = analyze(session_of(program), H100)
    totals = analysis.totals
    for key in ("phase", "module", "layer", "op", "direction"):
        groups = analysis.by(key)
        assert len({group.name for group in groups}) == len(groups)
        assert sum(group.calls for group in groups) == totals.calls == len(program)
        assert sum(group.matrix_flops for group in groups) == totals.matrix_flops
        assert sum(group.vector_flops for group in groups) == totals.vector_flops
        assert sum(group.bytes_moved for group in groups) == totals.bytes_moved
        assert sum(group.bound_s for group in groups) == pytest.approx(totals.op_bound_s)
    assert sum(operation.calls for operation in analysis.operations) == totals.calls


def test_efficiency_compares_only_what_was_timed():
    analysis = analyze(session_of([Call(op=ADD)] * 4, times=[[1e-6, np.nan, np.nan, np.nan]], walls=[1.0]), H100)
    (group,) = analysis.by("op")
    assert group.efficiency == pytest.approx(96 / 3.35e12 / 1e-6)  # one bound over one time, not four over one
    assert group.bound_s == pytest.approx(4 * 96 / 3.35e12)
    (operation,) = analysis.operations
    assert operation.efficiency == group.efficiency
    assert operation.timed_calls == 1
