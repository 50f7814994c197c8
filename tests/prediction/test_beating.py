"""Every time that beats its bound without being flagged has a cause."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from handmade_models import A100

from rooflight.operators import registry
from rooflight.prediction.lint.bounds import row_bounds
from rooflight.prediction.lint.findings import Cause, causes_of, said_of, step_of
from rooflight.prediction.read.table import MeasuredTable


def table(operator: str, shapes: list[list[int]], share: float, **changes: object) -> MeasuredTable:
    """Rows on an A100 in half precision that take a share of their bounds, forward."""
    found = registry.find(operator)
    whole = MeasuredTable(
        **{
            "operator": operator,
            "kernel": operator,
            "device": A100,
            "precision": "fp16",
            "parameters": tuple(found.parameters),
            "shapes": np.array(shapes),
            "seconds": np.ones((len(shapes), 1)),
            "directions": found.directions[:1],
            "source": Path("rows.csv"),
            "lines": np.arange(2, 2 + len(shapes)),
            **changes,
        }
    )
    bound_s = row_bounds(whole).bound_s
    return MeasuredTable(**{**{name: getattr(whole, name) for name in whole.__slots__}, "seconds": share * bound_s})


def causes(measured: MeasuredTable, flagged: frozenset = frozenset()) -> dict[Cause, int]:
    return dict(causes_of(measured, row_bounds(measured), flagged))


ADDS = [[rows, 4096, 0] for rows in (512, 777, 1024)]  # 12 to 25 MB: the A100's cache has 40 MiB


def test_adds_whose_data_fit_the_cache_are_cache_resident():
    assert causes(table("add", ADDS, 0.9)) == {Cause.CACHE: 3}
    assert causes(table("add", ADDS, 1.1)) == {}
    large = [[1 << 20, 4096, 0]]  # 25 GB: what fits the cache is no 5 %
    assert causes(table("add", large * 2, 0.97)) == {Cause.CACHE: 2}  # it may hold some: the bound is beaten by less


def test_flagged_times_are_not_counted():
    measured = table("add", ADDS, 0.9)
    place = (measured.source, "add", 3, measured.directions[0])
    assert causes(measured, frozenset([place])) == {Cause.CACHE: 2}
    assert causes(measured, frozenset([(measured.source, "add", None, measured.directions[0])])) == {}


def test_convolutions_faster_than_their_flops_multiply_less():
    shape = {"b": 64, "c_in": 256, "height": 56, "width": 56, "c_out": 256, "kernel": 3, "padding": 1}
    row = list(registry.find("conv2d").shape(shape).values())
    assert causes(table("conv2d", [row, row], 0.6)) == {Cause.ALGORITHM: 2}


def test_products_faster_than_their_peak_are_left_to_the_clock():
    row = list(registry.find("gemm").shape({"m": 4096, "n": 4096, "k": 4096}).values())
    assert causes(table("gemm", [row, row], 0.97)) == {Cause.CLOCK: 2}


def test_a_time_rounded_down_to_a_step_is_rounding():
    measured = table("add", ADDS, 1.0)
    seconds = np.floor(measured.seconds * 1e6) / 1e6  # whole microseconds: 6.17 µs is 6
    rounded = MeasuredTable(**{**{name: getattr(measured, name) for name in measured.__slots__}, "seconds": seconds})
    assert step_of(seconds) == 1e-6
    halves = seconds + 0.5e-6 >= measured.seconds
    assert halves.any()
    assert causes(rounded).get(Cause.ROUNDING) == halves.sum()


def test_times_that_are_not_rounded_have_no_step():
    assert step_of(np.random.default_rng(0).uniform(1e-6, 1e-3, 50)) == 0
    assert step_of(np.array([2e-3, 5e-3, np.nan])) == 1e-3
    assert step_of(np.array([1e-3])) == 0


def test_what_is_said_counts_by_cause():
    assert said_of({}) == ""
    assert said_of({Cause.CACHE: 2, Cause.ALGORITHM: 1200}) == (
        "1,202 times are faster than the bound without being flagged: 1,200 FFT or Winograd, 2 cache-resident."
    )
