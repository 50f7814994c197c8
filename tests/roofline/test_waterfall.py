import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.roofline.program import waterfall_of

SECONDS = st.floats(min_value=0, max_value=1e6, allow_nan=False)


def gaps_of(**figures: float) -> list[tuple[str, float, float]]:
    """Name, seconds and until when, over a program bound of 1 s, a fused one of 2 and an op bound of 4."""
    gaps = waterfall_of(**({"program_bound_s": 1.0, "fused_bound_s": 2.0, "op_bound_s": 4.0} | figures))
    return [(gap.name, gap.seconds, gap.until_s) for gap in gaps]


def test_each_level_is_a_gap_above_the_one_before():
    gaps = waterfall_of(program_bound_s=1.0, fused_bound_s=3.0, op_bound_s=4.0, ops_measured_s=9.0, measured_s=10.0)
    assert [(gap.name, gap.seconds, gap.until_s) for gap in gaps] == [
        ("program bound", 1, 1),
        ("no overlap, no reuse between kernels", 2, 3),
        ("data movement that fusion would save", 1, 4),
        ("kernels slower than their bound", 5, 9),
        ("overhead and idle", 1, 10),
    ]
    assert [until_s for _, _, until_s in gaps_of()] == [1, 2, 4]  # without a measurement


@pytest.mark.parametrize(
    ("figures", "last"),
    [
        ({"measured_s": 10.0}, ("kernels and overhead", 6, 10)),  # without times of ops
        ({"ops_measured_s": 12.0, "measured_s": 10.0}, ("kernels and overhead", 6, 10)),  # ops longer than the step
        ({"measured_s": 3.0}, ("saved by fusion and overlap", -1, 3)),
        ({"measured_s": 0.5}, ("contradiction: step faster than its program bound", -3.5, 0.5)),
        # a cache of unknown bandwidth may serve what is faster than light
        ({"measured_s": 2.5, "warm_program_bound_s": 0.5}, ("saved by fusion and overlap", -1.5, 2.5)),
        ({"measured_s": 0.75, "warm_program_bound_s": 0.5}, ("saved by a warm cache", -3.25, 0.75)),
        (
            {"measured_s": 0.25, "warm_program_bound_s": 0.5},
            ("contradiction: step faster than its program bound", -3.75, 0.25),
        ),
    ],
)
def test_the_last_gap(figures, last):
    assert gaps_of(**figures)[-1] == last


@pytest.mark.parametrize(
    ("figures", "kernels"),
    [
        ({"ops_measured_s": 3.5, "warm_op_bound_s": 3.0}, ("saved by a warm cache", -0.5, 3.5)),
        (
            {"ops_measured_s": 2.5, "warm_op_bound_s": 3.0},
            ("contradiction: kernels faster than their bound", -1.5, 2.5),
        ),
        ({"ops_measured_s": 3.0}, ("contradiction: kernels faster than their bound", -1, 3)),
        ({"ops_measured_s": 3.0, "all_timed": False}, ("kernels, some of them without a time", -1, 3)),
    ],
)
def test_kernels_faster_than_their_bound(figures, kernels):
    *_, found, overhead = gaps_of(measured_s=5.0, **figures)
    assert found == kernels
    assert overhead == ("overhead and idle", 5 - kernels[2], 5)


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
