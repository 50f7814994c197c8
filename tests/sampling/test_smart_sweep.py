"""Which shape to sample next so that all others are known best."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.costs.operators import registry
from rooflight.records.samples import Row, Rows, Status
from rooflight.sampling.smart_sweep import Points, SmartSweep, most_informative

NONE = Points(places=np.empty((0, 1)), views=np.empty((0, 0)))


def points(places: list[float], views: list[float] | None = None) -> Points:
    some = np.empty((len(places), 0)) if views is None else np.array(views, dtype=np.float64)[:, None]
    return Points(places=np.array(places, dtype=np.float64)[:, None], views=some)


def chosen(sampled: Points, candidates: Points, use: list[float] | None = None, seconds: list[float] | None = None):
    ones = np.ones(len(candidates))
    return most_informative(sampled, candidates, ones if use is None else np.array(use),
                        ones if seconds is None else np.array(seconds))  # fmt: skip


def test_shapes_that_are_alike_vary_alike():
    found = points([0.0, 0.0, 1.0])
    covariance = found.covariance(found)
    # (1 + 0) e^0 + 1 = 2 with itself; (1 + sqrt 3) e^-sqrt 3 + 1 = 1.4834 a unit away
    assert covariance[0] == pytest.approx([2.0, 2.0, 1 + (1 + np.sqrt(3)) * np.exp(-np.sqrt(3))])


@pytest.mark.parametrize(
    ("sampled", "candidates", "more", "places"),
    [
        (NONE, [0.0, 1.0, 2.0, 3.0, 4.0], {}, {2}),  # the first is where most others are near
        (points([0.0]), [0.0, 1.0, 2.0, 3.0], {}, {2, 3}),  # the next is far from those that there are
        (points([0.0, 3.0]), [0.1, 1.5, 2.9], {}, {1}),
        (NONE, [0.0, 9.0], {"use": [1.0, 5.0]}, {1}),  # what is used more is worth more
        (NONE, [0.0, 9.0], {"use": [5.0, 1.0]}, {0}),
        (NONE, [0.0, 9.0], {"seconds": [2.0, 1.0]}, {1}),  # of two that tell as much, the shorter
        (NONE, [0.0, 9.0], {"seconds": [1.0, 2.0]}, {0}),
    ],
)
def test_the_most_informative_is_far_from_others_much_used_and_short(sampled, candidates, more, places):
    assert chosen(sampled, points(candidates), **more) in places


def test_shapes_at_which_models_differ_tell_which_is_right():
    """At the first two all devices' models say the same; at the others they are 40 % apart, up or down."""
    assert chosen(NONE, points([0.0, 3.0, 6.0, 9.0], [0.0, 0.0, 0.4, -0.4])) in (2, 3)
    # where one is known, so is the other at which they differ alike
    assert chosen(points([6.0], [2.0]), points([0.0, 9.0], [0.0, 2.0])) == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=12), st.lists(st.floats(-5, 5), max_size=12))
def test_any_points_have_one_that_tells_most(candidates: list[float], sampled: list[float]):
    known = points(sampled) if sampled else NONE
    assert 0 <= chosen(known, points(candidates)) < len(candidates)


def swept(views, *, budget_s: float, spend_s, name: str = "swiglu") -> list[Row]:
    operator = registry.find(name)
    sweep = SmartSweep(operator, "float32", budget_s=budget_s, kind="cuda", views=views)
    rows = Rows(operator.parameters)
    while (shape := sweep.next(rows)) is not None:
        rows.add(Row(shape=dict(shape), status=Status.OK, samples_s={"fwd": (1e-3,) * 5, "bwd": (1e-3,) * 5},
                     spent_s=spend_s(shape), when="", note=""))  # fmt: skip
    return list(rows.values())


def test_a_sweep_goes_where_models_of_other_devices_differ():
    """In a quarter of the space, and at each shape in another way."""
    span = registry.find("swiglu").sizes["rows"].smart

    def views(shapes):
        found = []
        for each in shapes:
            rng = np.random.default_rng(each["rows"] * each["dim"])
            found.append(rng.normal(0, 2.0 * (span.place(each["rows"]) > 0.75), 6))
        return {str(number): column for number, column in enumerate(np.array(found).T)}

    without = swept(lambda shapes: {}, budget_s=30.0, spend_s=lambda _: 1.0)
    found = swept(views, budget_s=30.0, spend_s=lambda _: 1.0)
    assert len(found) == len(without) == 30
    large, before = (sum(span.place(row.shape["rows"]) > 0.75 for row in each) for each in (found[3:13], without[3:13]))
    assert large > before


def test_models_that_know_only_some_shapes_are_asked_of_those():
    calls: list[int] = []

    def views(shapes):
        calls.append(len(shapes))
        name = "few" if len(calls) % 2 else "many"
        return {name: np.ones(len(shapes))}

    found = swept(views, budget_s=10.0, spend_s=lambda _: 1.0)
    assert len(found) == 10
    assert sum(calls) < 3 * 128  # each shape is asked of once


def test_no_row_is_begun_that_the_rest_of_the_budget_is_not_worth():
    """Rows of 3 s: three are 9 of 10 s, and a fourth would end at 12; of 11 s there are 2 left, which is worth one."""
    assert len(swept(None, budget_s=10.0, spend_s=lambda _: 3.0)) == 3
    assert len(swept(None, budget_s=11.0, spend_s=lambda _: 3.0)) == 4


def test_shapes_that_take_longer_are_chosen_less():
    """Half of the space takes ten times as long: it gets less than half of the rows."""
    span = registry.find("swiglu").sizes["dim"].smart

    def spend_s(shape):
        return 10.0 if span.place(shape["dim"]) > 0.5 else 1.0

    found = swept(lambda shapes: {}, budget_s=120.0, spend_s=spend_s)
    assert sum(row.spent_s > 5 for row in found) < 0.4 * len(found)
