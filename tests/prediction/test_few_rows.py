"""What few rows of a device teach on top of a model, and beside tables."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp, hypot, log
from typing import Any

import numpy as np
import pytest
from handmade_models import A100, H100, INSIDE, expert, lone, model, packed, products, shown, stump, unpacked
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.devices import get
from rooflight.prediction.fit.experts import learn
from rooflight.prediction.fit.few_rows import correction, refine, units_of, with_doubt
from rooflight.prediction.fit.fitting import learn_beside
from rooflight.prediction.fit.rows import Shown
from rooflight.prediction.model.devices import device_traits
from rooflight.prediction.model.files import decode, encode
from rooflight.prediction.model.model import Model
from rooflight.prediction.work.facts import (
    FACTS,
    OTHER_REDUCTIONS_KEY,
    OTHERS_KEY,
    PRODUCT_KEY,
    WorkKind,
    key_of_others,
    product_facts,
)
from rooflight.prediction.work.features import features_of, names_of
from rooflight.prediction.work.floors import (
    FASTEST,
    least_kernel_s,
    least_slowdown,
    small_kernel_s,
    usual_slowdown,
    with_launch,
    without_launch,
)

L4 = get("L4")
BASE = model(expert(A100, 0.5, 0.5))
PLACE = names_of(PRODUCT_KEY).index("log k")
PRODUCTS = products(400, seed=5)


@pytest.fixture(autouse=True)
def no_shortest_kernel(request, monkeypatch):
    """Products by hand are so small that all of them would take the shortest kernel."""
    if "shortest" not in request.node.name:
        monkeypatch.setattr("rooflight.prediction.fit.few_rows.least_kernel_s", lambda _: 0.0)


def rows(count: int, slowdown: Any, device=A100) -> Shown:
    facts = products(count, seed=9, device=device)
    return shown(slowdown(facts) if callable(slowdown) else slowdown, facts, device)


def refined(base: Model, *taught: Shown) -> Model:
    return Model(
        key=base.key, experts=base.experts, unseen=base.unseen, power=base.power,
        refinements=tuple(refine(base, each) for each in taught),
    )  # fmt: skip


def test_few_rows_move_all_predictions_by_a_scale_drawn_to_none():
    found = refine(BASE, rows(3, 0.8))
    # three times missed by 0.8 - 0.5 = 0.3; the middle, as if two more had been missed by nothing: 0.3 * 3 / 5
    assert found.process is None
    assert found.offset == pytest.approx(0.18)
    answer = refined(BASE, rows(3, 0.8)).answer(rows(3, 0.8).facts, A100)
    assert answer.slowdown == pytest.approx(0.68)
    # left out, each is predicted with 0.3 * 2 / 4 = 0.15 of its 0.3
    assert found.error == pytest.approx(1 - exp(-0.15))
    assert found.error_before == pytest.approx(1 - exp(-0.3))
    assert found.rows == 3


def test_the_middle_of_rows_counts_not_the_one_that_went_wrong():
    found = refine(BASE, rows(4, np.array([0.8, 0.8, 0.8, 6.0])))
    assert found.offset == pytest.approx(0.3 * 4 / 6)


@pytest.mark.parametrize(
    ("slowdown", "groups", "error"),
    [
        # most are three times as slow as predicted; the others, then predicted three times too slow, weigh more
        (np.where(np.arange(16) % 8 < 5, 1.6, 0.4), np.arange(16) % 2, None),
        (np.full(20, 0.5), None, 0.0),  # predicted already
        (np.array([0.1, 0.9]), None, None),  # left out, each is missed by more with what the other says
    ],
)
def test_rows_whose_error_would_not_shrink_change_nothing(slowdown, groups, error):
    found = refine(BASE, rows(len(slowdown), slowdown), groups=groups)
    assert (found.offset, found.process) == (0.0, None)
    assert found.error == found.error_before
    assert error is None or found.error == error


def test_twenty_rows_show_by_what_they_are_missed():
    """Work that is slower the less deep its products are, on a device that no expert knows."""

    def slowdown(facts: np.ndarray) -> np.ndarray:
        return 1.0 - 0.1 * features_of(PRODUCT_KEY, facts, L4)[:, PLACE]

    # one expert, so that what is answered of the new device is what it says: 0.5 of everything
    base = Model(key=PRODUCT_KEY, experts=(expert(L4, 0.5, 0.5),), unseen=(-0.7, 0.8))
    facts = products(400, seed=5, device=L4)
    before, after = (each.answer(facts, L4).slowdown for each in (base, refined(base, rows(20, slowdown, L4))))
    true = np.maximum(0.0, slowdown(facts))
    assert np.abs(after - true).mean() < 0.25 * np.abs(before - true).mean()


def test_a_device_is_like_the_expert_whose_answers_its_times_are_near():
    """Two experts that differ by the depth of the product; the new device is as one of them says, not as both do."""
    count = len(names_of(PRODUCT_KEY))
    deep = stump(log(256), 0.2, 1.0, feature=PLACE, features=count)
    new = get("B200-SXM")
    alike: dict[str, Any] = {
        "traits": device_traits(new), "low": np.full(count, -100.0), "high": np.full(count, 100.0)
    }  # fmt: skip
    base = model(expert(A100, 0.6, 0.6, main=lone(0.6, count), **alike), expert(H100, 0.6, 0.6, main=deep, **alike))
    values = features_of(PRODUCT_KEY, products(20, seed=9, device=new), new)
    wanted = base.experts[1].predict(PRODUCT_KEY, values)
    found = refine(base, rows(20, wanted, new))
    assert found.compares
    facts = products(200, seed=5, device=new)
    true = base.experts[1].predict(PRODUCT_KEY, features_of(PRODUCT_KEY, facts, new))
    after = refined(base, rows(20, wanted, new)).answer(facts, new).slowdown
    before = base.answer(facts, new).slowdown
    assert np.abs(after - true).mean() < 0.3 * np.abs(before - true).mean()


def test_other_devices_are_answered_as_before():
    found = refined(BASE, rows(20, 0.8, L4))
    for device in (A100, H100):
        one, other = (each.answer(PRODUCTS, device) for each in (BASE, found))
        assert np.array_equal(one.slowdown, other.slowdown)
        assert np.array_equal(one.high, other.high)


def test_few_rows_leave_the_doubt_of_the_model():
    assert with_doubt((-0.1, 0.2), (-0.6, 0.8), 4) == pytest.approx((-hypot(0.1, 0.3), hypot(0.2, 0.4)))
    widths = []
    for count in (1, 5, 40):
        noise = np.random.default_rng(1).normal(0, 0.05, count)
        low, high = refine(BASE, rows(count, 0.8 + noise, L4)).inside
        widths.append(high - low)
    assert widths == sorted(widths, reverse=True)
    # where the device is known, noise of a tenth of what the expert's interval allows leaves it as sure, or surer
    noise = np.random.default_rng(0).normal(0, 0.005, 60)
    low, high = refine(BASE, rows(60, 0.7 + noise)).inside
    assert INSIDE[0] < low < 0 < high < INSIDE[1]


def test_work_beyond_the_rows_is_no_surer_than_before_and_counts_as_extrapolated():
    model_ = refined(BASE, rows(20, 0.8, L4))
    asked = products(50, seed=3, largest=1 << 17, device=L4)
    answer, least = model_.answer(asked, L4), least_slowdown(PRODUCT_KEY, asked, L4)
    beyond = ~answer.known
    assert beyond.any()
    low, high = BASE.unseen
    assert (answer.high - answer.slowdown)[beyond] == pytest.approx(np.maximum(high, 0.0))
    assert (answer.slowdown - answer.low)[beyond] == pytest.approx(np.minimum(-low, (answer.slowdown - least)[beyond]))
    inside = model_.answer(rows(20, 0.8, L4).facts, L4)
    assert inside.known.all()


def test_what_rows_taught_fades_beyond_their_sizes():
    facts = product_facts(*(np.full(6, 256.0) + np.arange(6) for _ in "mnk"), "float16", A100)
    found = refined(BASE, shown(0.8, facts))
    near, far, farther = (
        found.answer(product_facts(*(np.array([size]) for _ in "mnk"), "float16", A100), A100).slowdown[0]
        for size in (258.0, 1024.0, 65536.0)
    )
    assert near > 0.5 + 0.3 * 6 / 8 - 1e-6
    assert 0.5 < far < near
    assert farther == pytest.approx(0.5, abs=1e-4)


def test_a_time_of_the_shortest_kernel_is_no_news():
    """Products of next to nothing, which take the H100's shortest kernel: a thousand times the bound."""
    facts = product_facts(*(np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) for _ in "mnk"), "float16", H100)
    least_s = least_kernel_s(H100)
    base = model(expert(A100, 0.5, 0.5))
    found = refine(base, shown(np.log(least_s / facts[:, 0]), facts, H100))
    assert found.error_before == pytest.approx(0.0, abs=1e-6)
    assert (found.offset, found.process) == (0.0, None)


def test_intervals_hold_nine_in_ten_of_what_was_not_shown():
    """Noise of 10 %, and an offset: 20 rows are shown, 400 are asked for, ten times over."""
    held = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        some = products(20, seed=100 + seed, device=L4)
        found = refined(BASE, shown(0.9 + rng.normal(0, 0.1, 20), some, L4))
        answer = found.answer(products(400, seed=5, device=L4), L4)
        true = 0.9 + rng.normal(0, 0.1, 400)
        held.append(np.mean((answer.low <= true) & (true <= answer.high)))
    assert 0.85 < np.mean(held) < 0.995


def test_rows_of_one_group_are_left_out_together():
    """Two kinds of work, each missed by its own amount: one says nothing good of the other."""
    facts = products(20, seed=9)
    slowdown = np.where(np.arange(20) < 10, 0.2, 0.8)
    alone = refine(BASE, shown(slowdown, facts))
    together = refine(BASE, shown(slowdown, facts), groups=np.arange(20) // 10)
    assert together.error >= alone.error


def test_more_rows_than_points_are_kept_as_some_of_them():
    found = refine(BASE, rows(500, lambda facts: 0.5 + 0.1 * np.log(facts[:, 0] / facts[:, 0].min())))
    assert found.process is not None
    assert len(found.process.points) == 300
    assert found.rows == 500
    assert found.error < 0.5 * found.error_before


def test_features_that_never_changed_do_not_count():
    zeros = np.zeros(len(names_of(PRODUCT_KEY)))
    assert (units_of(model(expert(A100, 0.5, 0.5, low=zeros, high=zeros))) == 0).all()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1.0, 12.0), min_size=1, max_size=25), st.integers(0, 3))
def test_no_rows_make_a_prediction_beat_the_bound_or_leave_its_interval(slowdowns: list[float], seed: int):
    facts = products(len(slowdowns), seed=seed, device=L4)
    plain = model(expert(A100, 0.5, 0.5), expert(H100, 1.0, 1.0))
    found = refined(plain, shown(np.array(slowdowns), facts, L4))
    answer = found.answer(PRODUCTS, L4)
    assert np.isfinite([answer.slowdown, answer.low, answer.high]).all()
    assert ((answer.low >= FASTEST) & (answer.low <= answer.slowdown) & (answer.slowdown <= answer.high)).all()
    assert (answer.slowdown >= 0).all()
    # nothing further off than any row was
    most = np.abs(np.array(slowdowns) - plain.answer(facts, L4).slowdown).max() + 1e-9
    assert (np.abs(answer.slowdown - plain.answer(PRODUCTS, L4).slowdown) <= most).all()


TAUGHT = refined(
    model(expert(A100, 0.5, 0.5), expert(H100, 1.0, 1.0)),
    rows(20, lambda facts: np.log(facts[:, 0]) / 9 + 2, L4),
    rows(3, 0.8, A100),
)
ABOUT, ARRAYS = unpacked(encode(TAUGHT))


def answers(found: Model) -> np.ndarray:
    each = [found.answer(PRODUCTS, device) for device in (L4, A100, H100)]
    return np.array([[answer.slowdown, answer.low, answer.high, answer.known] for answer in each])


def test_what_is_written_is_what_is_read():
    found = decode(encode(TAUGHT))
    assert np.array_equal(answers(found), answers(TAUGHT))
    assert encode(found) == encode(TAUGHT)
    assert [each.device for each in found.refinements] == [L4.name, A100.name]
    about, arrays = unpacked(encode(BASE))  # a model without such rows is kept as before
    assert "refinements" not in about
    assert not [name for name in arrays if name.startswith("refinement")]


def with_first(**changes: Any) -> bytes:
    first, *others = ABOUT["refinements"]
    return packed({**ABOUT, "refinements": [{**first, **changes}, *others]}, ARRAYS)


def with_array(name: str, array: Any) -> bytes:
    return packed(ABOUT, {**ARRAYS, f"refinement 0.{name}": array})


FIRST = ABOUT["refinements"][0]
DAMAGED = {
    "no points": packed(ABOUT, {name: each for name, each in ARRAYS.items() if not name.endswith("0.points")}),
    "points of another number": with_array("points", np.zeros(7, np.float32)),
    "points that are no numbers": with_array("points", ARRAYS["refinement 0.points"] * np.float32(np.nan)),
    "points of another kind": with_array("points", ARRAYS["refinement 0.points"].astype(np.float64)),
    "no weights": with_array("weight", np.zeros(0, np.float32)),
    "views of another model": with_array("views", np.zeros(3, np.float32)),
    "units below none": with_first(unit=[-1.0] * len(FIRST["unit"])),
    "too few units": with_first(unit=[1.0]),
    "ranges backwards": with_first(low=FIRST["high"], high=FIRST["low"]),
    "an interval backwards": with_first(inside=[0.1, -0.1]),
    "no rows": with_first(rows=0),
    "an offset without end": with_first(offset=1e300),
    "a floor above the ceiling": with_first(floor=1.0, ceiling=-1.0),
    "a ceiling that leads to no time": with_first(ceiling=1e6),
    "two of one device": packed({**ABOUT, "refinements": [FIRST, FIRST]}, ARRAYS),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_what_cannot_be_is_refused_in_one_line(content: bytes):
    with pytest.raises(ValueError, match=r"^[^\n]+: fit it again$"):
        decode(content)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_numbers_changed_at_random_are_refused_or_still_predict(data: st.DataObject):
    name = data.draw(st.sampled_from(sorted(name for name in ARRAYS if name.startswith("refinement"))))
    array = ARRAYS[name].copy()
    bytes_of = array.view(np.uint8)
    bytes_of[data.draw(st.integers(0, len(bytes_of) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode(packed(json.loads(json.dumps(ABOUT)), {**ARRAYS, name: array}))
    except ValueError:
        return
    slowdown, low, high, _ = np.moveaxis(answers(found), 1, 0)
    assert np.isfinite([slowdown, low, high]).all()
    assert ((low >= FASTEST) & (low <= slowdown) & (slowdown >= 0) & (slowdown <= high)).all()


MI300X = get("MI300X")


def values(rows: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, 3))


def slow_products(device, slowdown: float, rows: int = 40) -> Shown:
    m = 2.0 ** np.random.default_rng(1).integers(6, 12, rows)
    facts = product_facts(m, np.full(rows, 8192.0), np.full(rows, 8192.0), "fp16", device)
    return Shown(key=PRODUCT_KEY, device=device, facts=facts, slowdown=np.full(rows, log(slowdown)))


def test_five_rows_teach_a_factor_drawn_to_one():
    found = correction(H100, values(5), np.full(5, log(2.0)))
    # 5 rows beside the 3 of doubt: 5 / 8 of log 2
    assert found.predict(values(9)) == pytest.approx(np.full(9, log(2.0) * 5 / 8))


@pytest.mark.parametrize(("count", "slowdown"), [(0, log(2.0)), (4, log(2.0)), (30, 0.0)])
def test_fewer_than_five_rows_and_rows_that_are_right_teach_nothing(count, slowdown):
    assert correction(H100, values(count), np.full(count, slowdown)) is None


def test_a_correction_fades_far_from_its_rows():
    where = values(60)
    found = correction(H100, where, 0.5 + 0.3 * where[:, 0], fades=True)
    assert found.predict(where) == pytest.approx(0.5 + 0.3 * where[:, 0], abs=0.15)
    assert found.predict(np.full((1, 3), 1e4)) == pytest.approx([0.0], abs=0.01)


@pytest.mark.parametrize(("count", "taught"), [(39, 400), (40, 440)])
def test_a_session_s_rows_join_many_of_a_table_where_they_are_not_few(count, taught):
    table, ops = slow_products(A100, 1.5, rows=400), slow_products(A100, 3.0, rows=count)
    (model,) = learn_beside([(learn([table]).experts[0], table)], [table], [ops]).models
    assert [each.rows for each in model.experts] == [taught]


def test_rows_of_another_device_correct_what_tables_taught():
    table, ops = slow_products(A100, 1.5), slow_products(H100, 3.0, rows=10)
    expert = learn([table]).experts[0]
    (model,) = learn_beside([(expert, table)], [table], [ops]).models
    assert model.devices == (A100.name,)
    assert [each.device for each in model.corrections] == [H100.name]
    answered = model.answer(ops.facts, H100).slowdown
    assert (np.exp(answered) > 2.0).all()  # 1.5 without the rows; not 3: 10 of 13 rows tell
    assert np.exp(model.answer(table.facts, A100).slowdown) == pytest.approx(np.full(40, 1.5), rel=0.02)
    assert decode(encode(model)).answer(ops.facts, H100).slowdown == pytest.approx(answered, abs=1e-3)
    with pytest.raises(ValueError, match="two of one device"):
        replace(model, corrections=model.corrections * 2)


@settings(deadline=None)
@given(st.floats(1e-7, 1e-2), st.floats(12e-6, 20e-6))
def test_a_launch_goes_out_as_it_came_in(seconds, launch_s):
    inside = with_launch(np.array([seconds]), launch_s)
    assert inside[0] >= seconds
    assert without_launch(inside, launch_s) == pytest.approx([seconds], rel=1e-3, abs=1e-8)


def test_reductions_and_other_ops_are_learned_apart():
    assert key_of_others("aten::native_layer_norm") == OTHER_REDUCTIONS_KEY
    assert key_of_others("aten::relu") == OTHERS_KEY


def test_a_small_op_usually_takes_its_kernels_time():
    facts = np.zeros((1, len(FACTS[WorkKind.ROWS])))
    facts[0, 0] = 1e-9
    # 2 us and 1 ns over 85 % of the bandwidth
    assert np.exp(usual_slowdown("aten::relu", facts, H100)) * 1e-9 == pytest.approx([2.0e-6 + 1e-9 / 0.85])
    assert small_kernel_s("aten::relu", MI300X) == 4.0e-6
    assert small_kernel_s("aten::relu", get("H100-SXM5-80GB")) < small_kernel_s("aten::sum", H100)
