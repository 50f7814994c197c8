"""Experts and models: what they answer, of what, and how sure they are."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log
from typing import Any

import numpy as np
import pytest
from builders import op, spec
from handmade_models import (
    A100,
    H100,
    INSIDE,
    LARGEST_LOG_S,
    OUTSIDE,
    UNSEEN,
    expert,
    lone,
    model,
    products,
    shown,
    stump,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.devices import all_devices, get
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.prediction.fit import experts as teaching
from rooflight.prediction.fit.experts import LEAST_ROWS, join, learn, teach
from rooflight.prediction.fit.rows import Shown
from rooflight.prediction.model.devices import device_traits
from rooflight.prediction.model.files import decode, encode
from rooflight.prediction.model.model import Model
from rooflight.prediction.model.trees import Leaves, Way
from rooflight.prediction.work.facts import FACTS, PRODUCT_KEY, WorkKind, facts_of, product_facts
from rooflight.prediction.work.features import features_of, names_of, steady_features
from rooflight.prediction.work.floors import least_slowdown

LARGE = products(20, seed=3, largest=1 << 17)  # bounds up to seconds, while experts by hand saw a millisecond
BLANK = DeviceSpec(name="blank", vendor="", architecture="", kind="other", datasheet=replace(A100.datasheet, memory=()))
NOISE = 0.08


def smooth(facts: np.ndarray) -> np.ndarray:
    """log(time / bound) that depends on sizes as kernels' does: small work is slow, odd sizes are slower."""
    fact = dict(zip(FACTS[WorkKind.PRODUCT], facts.T, strict=True))
    return 0.3 + 0.15 * np.maximum(0.0, -9 - np.log(fact["bound_s"])) + 0.2 * (fact["k"] % 2)


@pytest.fixture(scope="module")
def learned() -> Model:
    """400 products on an A100, with noise."""
    facts = products(400, seed=1)
    noise = np.random.default_rng(2).normal(0, NOISE, len(facts))
    return learn([shown(np.maximum(0, smooth(facts) + noise), facts)])


def test_nine_in_ten_of_fresh_work_lie_in_the_interval_and_are_missed_as_the_model_says(learned: Model):
    facts = products(2000, seed=9)
    true = np.maximum(0, smooth(facts) + np.random.default_rng(10).normal(0, NOISE, len(facts)))
    answer = learned.answer(facts, A100)
    inside = (answer.low <= true) & (true <= answer.high)
    assert 0.86 <= inside[answer.known].mean() <= 0.95
    assert answer.known.mean() > 0.9
    # the interval of 5 % to 95 % of a normal distribution: 1.64 deviations; what is learned errs, too
    assert 2 * 1.64 * NOISE * 0.9 < learned.experts[0].inside[1] - learned.experts[0].inside[0] < 2 * 1.64 * NOISE * 1.6
    # its mean absolute error: 0.8 deviations
    assert 0.8 * NOISE * 0.9 < learned.error < 0.8 * NOISE * 1.7
    assert np.abs(np.expm1(answer.slowdown - true)).mean() == pytest.approx(learned.error, rel=0.25)


def test_teaching_twice_teaches_the_same():
    facts = products(60)
    one, other = (encode(learn([shown(smooth(facts), facts)])) for _ in range(2))
    assert one == other


def test_too_few_rows_teach_nothing():
    facts = products(LEAST_ROWS)
    assert teach(shown(0.5, facts)).rows == LEAST_ROWS
    with pytest.raises(ValueError, match=r"gemm: 11 rows are too few to learn from, sample at least 12"):
        teach(shown(0.5, facts[1:]))


def test_what_takes_its_bound_is_never_predicted_faster_than_light():
    facts = products(60)
    noise = np.maximum(0, np.random.default_rng(0).normal(0, 0.05, len(facts)))
    found = learn([shown(noise, facts)])
    for device in (A100, H100):
        facts = products(300, seed=4, largest=1 << 15)
        answer = found.answer(facts, device)
        assert (answer.slowdown >= 0).all()
        assert (answer.low >= least_slowdown("gemm", facts, device)).all()  # what a cache may hold
        assert (answer.slowdown >= answer.low).all()
        assert (answer.high >= answer.slowdown).all()


def test_one_shape_measured_often_can_be_learned():
    facts = np.repeat(products(1), 40, axis=0)
    noise = np.random.default_rng(0).normal(0.7, 0.05, 40)
    found = learn([shown(noise, facts)])
    answer = found.answer(facts[:1], A100)
    assert answer.slowdown[0] == pytest.approx(noise.mean(), abs=0.01)
    assert answer.known[0]
    assert found.experts[0].inside == found.experts[0].outside  # none of it is larger than the rest


def test_work_like_none_shown_is_extrapolated_and_less_sure(learned: Model):
    columns = {name: place for place, name in enumerate(FACTS[WorkKind.PRODUCT])}
    like = products(1, seed=5)
    larger, odd = like.copy(), like.copy()
    larger[0, columns["bound_s"]] *= 1e6
    odd[0, columns["item"]] = 8
    shown_before = learned.answer(like, A100)
    assert shown_before.known[0]
    for each in (larger, odd):
        answer = learned.answer(each, A100)
        assert not answer.known[0]
        assert answer.high - answer.slowdown >= shown_before.high - shown_before.slowdown
    (taught,) = learned.experts
    assert taught.outside[0] <= taught.inside[0] <= 0 <= taught.inside[1] <= taught.outside[1]


def test_larger_work_than_any_shown_is_asked_of_the_trees_beyond():
    found = model(expert(A100, 0.5, 0.9))
    answer = found.answer(LARGE, A100)
    larger = np.log(LARGE[:, 0]) > LARGEST_LOG_S
    assert 0 < larger.sum() < len(larger)
    assert answer.slowdown == pytest.approx(np.where(larger, 0.9, 0.5))
    assert answer.high - answer.slowdown == pytest.approx(np.where(larger, OUTSIDE[1], INSIDE[1]))
    assert answer.slowdown - answer.low == pytest.approx(-np.where(larger, OUTSIDE[0], INSIDE[0]))
    assert (answer.known != larger).all()


def test_an_op_larger_than_any_shown_stays_as_slow_as_the_largest():
    rng = np.random.default_rng(0)

    def exp_of(size):
        return facts_of((op("aten::exp", {"self": spec(size)}, [spec(size)]),), A100).values

    facts = np.array([exp_of((int(rows), int(width))) for rows, width in np.exp(rng.uniform(2, 8, (80, 2)))])
    overhead = 2e-6 * np.exp(rng.normal(0, 0.3, len(facts)))
    slowdown = np.log(1.2 * np.exp(rng.normal(0, 0.05, len(facts))) + overhead / facts[:, 0])
    taught = learn([Shown(key="aten::exp", device=A100, facts=facts, slowdown=slowdown)])
    huge = [exp_of((1 << 20, 4096))]
    (answer,) = taught.answer(np.array(huge), A100).slowdown
    assert answer == pytest.approx(log(1.2), abs=0.1)
    assert decode(encode(taught)).answer(np.array(huge * 3000), A100).slowdown == pytest.approx(answer, abs=1e-3)


def test_the_trees_beyond_see_no_sizes_of_the_whole():
    steady = [names_of(PRODUCT_KEY)[place] for place in steady_features(PRODUCT_KEY)]
    by_k = stump(np.log(64), 0.1, 2.0, feature=steady.index("log k"), features=len(steady))
    answer = model(replace(expert(A100, 0.5, 0.0), beyond=by_k)).answer(LARGE, A100)
    fact = dict(zip(FACTS[WorkKind.PRODUCT], LARGE.T, strict=True))
    larger = np.log(fact["bound_s"]) > LARGEST_LOG_S
    assert answer.slowdown[larger] == pytest.approx(np.where(fact["k"] <= 64, 0.1, 2.0)[larger])


def test_every_device_has_an_answer_for_work_of_any_size_and_none_for_none(learned: Model):
    most = np.array([2.0**53 - 1])
    endless = product_facts(most, most, most, "float16", A100, batch=most)
    for device in (*all_devices(), BLANK):
        for facts in (LARGE, endless, LARGE[:0]):
            answer = learned.answer(facts, device)
            assert np.isfinite([answer.slowdown, answer.low, answer.high]).all(), device.name
            assert (answer.slowdown >= 0).all()
            assert {len(each) for each in (answer.slowdown, answer.low, answer.high, answer.known)} == {len(facts)}
        assert np.isfinite(list(device_traits(device).values())).all(), device.name


def test_a_device_never_shown_is_extrapolated_within_what_that_cost_before():
    unpublished = (replace(device, reached=None) for device in (A100, get("B200-SXM")))
    known, new = unpublished
    answer = model(expert(known, 0.9, 0.9)).answer(products(5), new)
    assert not answer.known.any()
    assert answer.slowdown == pytest.approx(0.9)
    assert answer.high == pytest.approx(answer.slowdown + UNSEEN[1])
    assert answer.low == pytest.approx(answer.slowdown + UNSEEN[0])


def test_a_device_like_one_that_was_shown_gets_its_answer():
    twin = replace(A100, name="A100 by another name", match=())
    assert model(expert(A100, 0.5, 0.9)).answer(LARGE, twin).slowdown == pytest.approx(
        model(expert(A100, 0.5, 0.9)).answer(LARGE, A100).slowdown
    )
    far = replace(get("P100-PCIe-16GB"), reached=None)
    both = model(expert(A100, 0.5, 0.5), expert(far, 2.0, 2.0))
    assert both.answer(products(5), twin).slowdown == pytest.approx(0.5, abs=0.1)


def test_a_device_between_two_is_answered_in_between():
    low, high = (device_traits(replace(device, reached=None)) for device in (A100, H100))
    both = model(*(replace(expert(d, x, x), traits=t) for d, x, t in ((A100, 0.5, low), (H100, 1.5, high))))
    values = features_of(PRODUCT_KEY, products(3), A100)

    def at(share: float) -> float:
        (answer,) = set(both.blend(values, {name: (1 - share) * low[name] + share * high[name] for name in low}))
        return float(answer)

    steps = [at(share) for share in np.linspace(0, 1, 11)]
    assert steps == sorted(steps)
    assert steps[5] == pytest.approx(1.0)
    assert 0.5 <= steps[0] < 0.75
    assert 1.25 < steps[-1] <= 1.5


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=6, max_size=6), st.floats(0, 5), st.floats(0, 5))
def test_a_blend_lies_between_its_experts_however_unlike_the_device(traits: list[float], one: float, other: float):
    bare = [replace(device, reached=None) for device in (A100, H100)]
    both = model(*(expert(device, slow, slow) for device, slow in zip(bare, (one, other), strict=True)))
    values = features_of(PRODUCT_KEY, products(3), A100)
    found = both.blend(values, dict(zip(device_traits(bare[0]), traits, strict=True)))
    low, high = sorted((np.float32(one), np.float32(other)))
    assert ((found >= low - 1e-6) & (found <= high + 1e-6)).all()


def test_experts_of_another_item_size_are_not_asked_where_there_are_others():
    place = names_of(PRODUCT_KEY).index("log item")
    count = len(names_of(PRODUCT_KEY))
    low, high = np.full(count, -110.0), np.full(count, 100.0)
    low[place] = high[place] = np.log(4)  # only float32
    near = expert(A100, 0.5, 0.5, low=low, high=high)
    twin = replace(A100, name="a twin")
    assert model(near).answer(products(3), twin).slowdown == pytest.approx(0.5)  # better than nothing
    both = model(near, expert(H100, 1.5, 1.5))
    assert both.answer(products(3), twin).slowdown == pytest.approx(1.5, abs=0.1)


def thirsty(watts: float) -> DeviceSpec:
    """An A100 with so many times the power."""
    assert A100.tdp_w is not None
    name = f"A100 with {watts:g} times the power"
    return replace(A100, name=name, match=(), tdp_w=watts * A100.tdp_w, reached=None)


def test_arithmetic_is_slower_where_there_are_fewer_watts_for_it():
    clocked = replace(model(expert(thirsty(1.0), 1.0, 1.0)), power=0.7)
    square = product_facts(*(np.array([8192.0]),) * 3, "fp16", A100)
    vector = product_facts(np.array([1.0]), *(np.array([8192.0]),) * 2, "fp16", A100)
    for watts in (0.5, 1.0, 2.0):
        arithmetic = clocked.answer(square, thirsty(watts)).slowdown
        traffic = clocked.answer(vector, thirsty(watts)).slowdown
        assert arithmetic == pytest.approx(1 - 0.7 * log(watts) / (1 + exp(-1.4)))  # 1.4: the most a ridge counts
        assert traffic == pytest.approx(1 - 0.7 * log(watts) / (1 + exp(1.4)))
    hot = clocked.answer(square, thirsty(100.0))
    assert hot.slowdown == 0  # nothing beats the bound


@pytest.mark.parametrize("effect", [0.6, 0.0, -0.6, 2.0])
def test_what_fewer_watts_cost_is_learned_from_devices_that_were_shown(effect: float):
    devices = [thirsty(watts) for watts in (0.5, 0.8, 1.25, 2.0)]
    size = np.exp(np.random.default_rng(0).uniform(7, 9, 60)).round()
    facts = product_facts(size, size, size, "fp16", A100)
    slow = [shown(2 - effect * log(each.tdp_w / A100.tdp_w), facts, each) for each in devices]
    all_arithmetic = effect * (1 + exp(-1.4))
    pairs = 12  # against 4 that nobody saw
    assert learn(slow).power == pytest.approx(min(max(all_arithmetic, 0.0), 1.0) * pairs / (pairs + 4), abs=0.02)


def test_devices_predicted_from_one_another_tell_how_far_off_that_is():
    facts = products(60)
    slow = shown(1.5, products(60, device=H100), H100)
    found = learn([shown(0.5, facts), slow])
    assert found.devices == (A100.name, H100.name)
    assert found.rows == 120
    # each was 1 off; of two devices, half the square of the doubt of 0.6 is added: sqrt(1 + 0.6 * 0.6 / 2) = 1.086
    assert found.unseen == pytest.approx((-1.086, 1.086), abs=0.1)


@pytest.mark.parametrize("noise", [0.0, 0.5, 1.5])
def test_a_device_never_shown_is_not_surer_than_one_that_was(noise: float):
    """Not even where the others happened to be shown the very same rows, or where even they are hard to tell."""
    facts = products(60)
    slowdown = np.abs(2.0 + np.random.default_rng(0).normal(0, noise, len(facts)))
    twin = replace(A100, name="a twin")
    for found in (learn([shown(slowdown, facts)]), learn([shown(slowdown, facts), shown(slowdown, facts, twin)])):
        for each in found.experts:
            assert found.unseen[0] <= each.inside[0]
            assert found.unseen[1] >= each.inside[1]


def test_a_model_needs_experts_of_different_devices():
    for experts in ((), (expert(A100, 0.5, 0.5), expert(A100, 0.6, 0.6))):
        with pytest.raises(ValueError, match="has no expert, or two of one device"):
            model(*experts)
    one = shown(0.5)
    with pytest.raises(ValueError, match="two of one device"):
        join([teach(one)] * 2, [one] * 2)


def test_the_error_of_a_model_is_that_of_its_rows():
    both = model(expert(A100, 0, 0, rows=300, error=0.02), expert(H100, 0, 0, rows=100, error=0.06))
    assert both.error == pytest.approx(0.03)


def test_an_expert_is_asked_only_for_what_it_has_trees_for():
    """Batches all of one side, of the other, and of both."""
    found = model(expert(A100, 0.5, 0.9, main=lone(0.25, len(names_of(PRODUCT_KEY)))))
    larger = np.log(LARGE[:, 0]) > LARGEST_LOG_S
    for rows in (LARGE[larger], LARGE[~larger], LARGE):
        expected = np.where(np.log(rows[:, 0]) > LARGEST_LOG_S, 0.9, 0.25)
        assert found.answer(rows, A100).slowdown == pytest.approx(expected)


def test_other_kinds_are_taught_alike():
    key = "aten::exp"
    rng = np.random.default_rng(0)
    count = rng.integers(1 << 10, 1 << 24, 60).astype(float)
    columns = {name: np.ones(60) for name in FACTS[WorkKind.ROWS]}
    columns |= {"bound_s": 8 * count / 2e12, "memory_s": 8 * count / 2e12, "bytes": 8 * count, "rows": count}
    facts = np.stack(list(columns.values()), axis=1)
    found = learn([Shown(key=key, device=A100, facts=facts, slowdown=np.full(60, 0.5))])
    answer = found.answer(facts, A100)
    assert answer.slowdown == pytest.approx(0.5, abs=1e-3)
    assert answer.known.all()


def test_intervals_are_wide_where_rows_scatter_and_narrow_where_they_do_not():
    """Raw rows: half of them scatter by 30 %, half by 1 %; each half is covered, not only both together."""
    rng = np.random.default_rng(0)
    k = np.exp(rng.uniform(6, 9, 3000)).round()
    facts = product_facts(4096.0, 4096.0, k, "fp16", A100)
    noisy = k > np.median(k)
    slowdown = 0.5 + np.where(noisy, 0.3, 0.01) * rng.normal(size=3000)
    found = learn([Shown(key=PRODUCT_KEY, device=A100, facts=facts[:2400], slowdown=slowdown[:2400])])
    answer = found.answer(facts[2400:], A100)
    held = (answer.low <= slowdown[2400:]) & (slowdown[2400:] <= answer.high)
    for half in (noisy[2400:], ~noisy[2400:]):
        assert 0.82 < held[half].mean() < 0.98
    width = answer.high - answer.low
    assert np.median(width[noisy[2400:]]) > 10 * np.median(width[~noisy[2400:]])


@pytest.mark.parametrize("launch_s", [0.0, 5e-6, 17e-6])
def test_launches_of_others_make_small_work_no_slower(launch_s: float):
    """5 µs is what kernels of AMD's parts take, 17 µs a launch; neither expert saw sizes of 1."""
    low = np.array([-109.0, *[3.0] * (len(names_of(PRODUCT_KEY)) - 1)])
    own = expert(A100, 0.5, 0.5, low=low)
    found = model(own, expert(H100, 1.5, 1.5, low=low, launch_s=launch_s))
    tiny = product_facts(np.ones(1), np.ones(1), np.ones(1), "float16", A100)
    answer = found.answer(tiny, A100)
    assert (answer.slowdown[0] > 0.5) == (launch_s < 10e-6)
    assert answer.high[0] - answer.slowdown[0] == pytest.approx(UNSEEN[1])


@pytest.mark.parametrize(("rows", "leaves"), [(100, 7), (6000, 100), (30_660, 511), (1_000_000, 511)])
def test_most_leaves_are_as_many_as_rows_pay_for(rows: int, leaves: int) -> None:
    assert Leaves.MOST.of(rows) == leaves


@pytest.mark.parametrize(
    ("rows", "with_most", "chosen"),
    [(20_000, 0.96, Leaves.MOST), (20_000, 0.98, Leaves.MANY), (9_000, 0.5, Leaves.MANY)],
)
def test_most_leaves_are_taken_where_rows_held_out_are_missed_by_less(
    rows: int, with_most: float, chosen: Leaves, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missed(_values: Any, _slowdown: Any, way: Way, _train: Any, test: Any) -> Any:
        loss = 1.0 if way.loss == "l1" else 1.1
        return np.full(test.sum(), loss * {Leaves.FEW: 2.0, Leaves.MANY: 1.0, Leaves.MOST: with_most}[way.leaves])

    monkeypatch.setattr(teaching, "_missed", missed)
    parts = [np.arange(rows) < rows // 3]
    way, held_out = teaching._best_way(np.zeros((rows, 2)), np.zeros(rows), parts, trees_only=True)
    assert way == Way("l1", chosen)
    assert (held_out == (with_most if chosen is Leaves.MOST else 1.0)).all()
