"""What devices that were measured say of one that was not: which are alike, and how their times scale."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log

import numpy as np
import pytest
from builders import op, spec
from handmade_models import A100, H100, expert, model
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.devices import get
from rooflight.hardware.devices.spec import Reached
from rooflight.prediction.fit.experts import join, teach, with_reached
from rooflight.prediction.fit.few_rows import correction
from rooflight.prediction.fit.rows import Shown
from rooflight.prediction.model.devices import (
    PRODUCTS,
    REACHED,
    _middle,
    bound_elsewhere,
    device_traits,
    familiarity,
    likeness,
)
from rooflight.prediction.model.model import Expert
from rooflight.prediction.predictor import Predictor
from rooflight.prediction.work.facts import FACTS, PRODUCT_KEY, WorkKind, product_facts
from rooflight.prediction.work.features import features_of, names_of
from rooflight.prediction.work.floors import small_kernel_s

ADD = "aten::add"
UNPUBLISHED = replace(A100, reached=None)
MI100, MI210, MI300X = (get(name) for name in ("MI100", "MI210", "MI300X"))


def rows(byte_count: float, device=A100) -> np.ndarray:
    """One addition whose bound is the memory's."""
    found = np.ones((1, len(FACTS[WorkKind.ROWS])))
    memory_s = byte_count / device.dram_bytes_per_s
    given = {"bound_s": memory_s, "memory_s": memory_s, "compute_s": 1e-12, "bytes": byte_count, "matrix": 0, "item": 2}
    for name, value in given.items():
        found[:, FACTS[WorkKind.ROWS].index(name)] = value
    return found


def adding(slowdown: float):
    """An A100 that reaches 80 % of its bandwidth, and takes e to the ``slowdown`` times the bound of an addition."""
    one = expert(A100, slowdown, slowdown, key=ADD)
    return replace(one, traits={**one.traits, REACHED: log(0.8)})


def alike(squared: float, *, distant: float) -> float:
    """Of devices at such a squared distance: what a distant one counts for, and nine more for one nearly the same."""
    return (exp(-distant * squared) + 9 * exp(-2 * squared)) / 10


def test_a_trait_that_one_of_them_lacks_makes_devices_unlike():
    """AMD's parts have no number of a capability: that must not bring them nearer than NVIDIA's own."""
    whole = device_traits(H100)
    for name in ("bandwidth", "peak", "unit", "capability"):
        lacking = {key: value for key, value in whole.items() if key != name}
        assert likeness(whole, lacking, ADD) == pytest.approx(alike(9, distant=0.5))
        assert likeness(lacking, whole, ADD) == pytest.approx(alike(9, distant=0.5))
    assert likeness(whole, whole, ADD) == 1


def test_parts_of_one_maker_are_nearer_to_each_other_than_to_anothers():
    amd = {device.name: device_traits(device) for device in (MI100, MI210, MI300X)}
    assert likeness(amd["MI100"], amd["MI210"], ADD) > 5 * likeness(amd["MI100"], device_traits(A100), ADD)
    both = model(expert(MI210, 0.2, 0.2, key=ADD), expert(H100, 1.0, 1.0, key=ADD), key=ADD)
    assert both.answer(rows(1e8), A100).slowdown == pytest.approx(1.0, abs=0.1)


def test_watts_tell_products_apart_and_nothing_else():
    cool = replace(A100, name="cool", tdp_w=A100.tdp_w * exp(-0.6))  # twice the scale of 0.3
    assert likeness(device_traits(A100), device_traits(cool), PRODUCT_KEY) == pytest.approx(alike(4, distant=0.1))
    assert likeness(device_traits(A100), device_traits(cool), ADD) == 1


def test_what_waits_for_no_memory_scales_in_part_with_units_and_clock():
    """An A100 that reaches 80 % of its bandwidth takes four times the bound: 1.25 of it for memory. The rest, as a norm
    of order 1.2: (4 ** 1.2 - 1.25 ** 1.2) ** (1 / 1.2) = 3.156. On a part with a third of the bandwidth, and as many
    units, it is 3 ** -0.3 of that in units of a bound that is three times as long, 2.270:
    (1.25 ** 1.2 + 2.270 ** 1.2) ** (1 / 1.2) = 3.162.
    """
    slow, traits = adding(log(4.0)), {**device_traits(A100), REACHED: log(0.8)}
    values = features_of(ADD, rows(1e8), A100)
    third = {**traits, "bandwidth": traits["bandwidth"] - log(3.0)}
    found = exp(model(slow, key=ADD).blend(values, third)[0])
    assert found == pytest.approx(3.162, rel=1e-3)
    assert exp(model(slow, key=ADD).blend(values, traits)[0]) == pytest.approx(4.0)
    fast = {**third, "pace": traits["pace"] + log(2.0)}
    assert 1.25 < exp(model(slow, key=ADD).blend(values, fast)[0]) < found


def test_work_at_the_roof_takes_the_bandwidth_that_the_other_reaches():
    values, traits = features_of(ADD, rows(1e8), A100), {**device_traits(A100), REACHED: log(0.64)}
    assert model(adding(log(1.25)), key=ADD).blend(values, traits)[0] == pytest.approx(log(1 / 0.64))


@settings(deadline=None)
@given(
    st.floats(0, 5),
    st.dictionaries(st.sampled_from(["bandwidth", "pace", "peak", "watts", REACHED]), st.floats(-60, 60)),
)
def test_no_device_beats_its_bound_or_takes_for_ever(slowdown: float, changes: dict[str, float]):
    one = adding(slowdown)
    changes = {name: max(-3.0, min(0.0, value)) if name == REACHED else value for name, value in changes.items()}
    found = model(one, key=ADD).blend(features_of(ADD, rows(1e8), A100), {**device_traits(A100), **changes})
    assert np.isfinite(found).all()
    assert (found >= 0).all()


def test_the_bandwidth_that_a_device_reaches_is_learned_from_its_large_rows():
    size = np.geomspace(1e5, 1e9, 100)
    facts = np.concatenate([rows(each) for each in size])
    slow = np.where(size > 1e7, log(1.25), log(3.0))
    add = Shown(key=ADD, device=UNPUBLISHED, facts=facts, slowdown=slow)
    wasteful = Shown(key="aten::_softmax", device=UNPUBLISHED, facts=facts, slowdown=slow + 0.5)
    # finds its data in caches
    chain = Shown(key="aten::mul+aten::add", device=UNPUBLISHED, facts=facts, slowdown=np.zeros(100))
    few = Shown(key=ADD, device=replace(H100, reached=None), facts=facts[:20], slowdown=slow[:20])
    taught = [(teach(each, trees_only=True), each) for each in (add, wasteful, chain, few)]
    found = with_reached(taught)
    assert [expert.traits.get(REACHED) for expert, _ in found] == [pytest.approx(log(0.8))] * 3 + [None]


def test_the_bandwidth_that_a_devices_file_says_it_reaches_is_not_learned():
    published = replace(UNPUBLISHED, reached=Reached(sources=("a stream",), bytes_per_s=0.9 * A100.dram_bytes_per_s))
    facts = np.concatenate([rows(each) for each in np.geomspace(1e5, 1e9, 100)])
    shown = Shown(key=ADD, device=published, facts=facts, slowdown=np.full(100, log(1.6)))
    ((taught, _),) = with_reached([(teach(shown, trees_only=True), shown)])
    assert taught.traits[REACHED] == pytest.approx(log(0.9))


def product(m: float, n: float, k: float, device) -> np.ndarray:
    return features_of(PRODUCT_KEY, product_facts(np.array([m]), n, k, "fp16", device), device)


def reaching(device, slowdown: float, *, bandwidth: float, products: float):
    one = expert(device, slowdown, slowdown)
    return replace(one, traits={**one.traits, REACHED: log(bandwidth), "products 2": log(products)})


def test_products_take_what_the_new_device_reaches_of_its_roofs():
    """An expert at half of its matrix peak takes twice the bound of a large product. A device that reaches a quarter
    takes four times: the product is so far from the ridge that memory, a quarter of the compute time at least as
    features have it (exp(-1.4)), changes that by 1 % where both reach 80 % of their bandwidth:
    sqrt((4 ** 2 + (0.2466 / 0.8) ** 2) / (2 ** 2 + (0.2466 / 0.8) ** 2)) = 1.983.
    """
    values = product(8192.0, 8192.0, 8192.0, A100)
    half = model(reaching(A100, log(2.0), bandwidth=0.8, products=0.5))
    other = {**device_traits(A100), REACHED: log(0.8), "products 2": log(0.25)}
    assert exp(half.blend(values, other)[0]) == pytest.approx(2 * 1.983, rel=1e-3)
    assert exp(half.blend(values, {**other, "products 2": log(0.5)})[0]) == pytest.approx(2.0)


@settings(deadline=None)
@given(st.floats(-2, 0), st.floats(-2, 0), st.integers(1, 8192), st.integers(1, 8192))
def test_a_device_that_reaches_less_is_never_predicted_faster(compute: float, memory: float, m: int, k: int):
    values = product(float(m), 1024.0, float(k), A100)
    known = model(reaching(A100, 1.0, bandwidth=0.8, products=0.5))
    found = [
        known.blend(values, {**device_traits(A100), REACHED: memory + less, "products 2": compute + less})[0]
        for less in (0.0, -0.1)
    ]
    assert found[1] >= found[0]
    assert found[0] >= 0


def test_a_new_device_of_which_nothing_is_known_reaches_what_most_do_and_the_middle_counts_for_products():
    """Three devices that reach a half of their peak and one that reaches a tenth: the middle is a half. Where two of
    three agree, a library that is four times slower at this shape does not change what is expected.
    """
    experts = [reaching(replace(A100, name=f"A100 {n}"), 1.0, bandwidth=0.8, products=0.5) for n in range(3)]
    slow = reaching(replace(A100, name="slow"), 1.0 + log(5.0), bandwidth=0.8, products=0.1)
    new = {name: value for name, value in device_traits(A100).items() if name not in (REACHED, *PRODUCTS.values())}
    found = model(*experts, slow).blend(product(8192.0, 8192.0, 8192.0, A100), new)[0]
    assert found == pytest.approx(1.0, abs=0.02)
    slowdowns = {"A100 0": 0.5, "A100 1": 0.5, "A100 2": 0.5 + log(4.0)}
    experts = [reaching(replace(A100, name=n), s, bandwidth=0.8, products=0.5) for n, s in slowdowns.items()]
    found = model(*experts).blend(product(64.0, 64.0, 4096.0, A100), experts[0].traits)[0]
    assert found == pytest.approx(0.5)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 5), st.floats(1e-9, 1)), min_size=1, max_size=9))
def test_the_middle_lies_among_the_answers(pairs: list[tuple[float, float]]):
    answers, weights = (np.array(each)[:, None] for each in zip(*pairs, strict=True))
    found = _middle(answers, weights)[0]
    assert answers.min() - 1e-9 <= found <= answers.max() + 1e-9
    assert _middle(answers, np.ones_like(answers))[0] == pytest.approx(np.median(answers))


def test_what_a_device_reaches_of_its_peak_is_learned_from_its_faster_large_products():
    sizes = np.geomspace(256, 8192, 200)
    facts = product_facts(np.round(sizes), 4096.0, 4096.0, "fp16", A100)
    slow = np.where(np.arange(200) % 2 == 0, log(2.0), log(6.0))  # a quarter is faster than all but the half at 2
    shown = Shown(key=PRODUCT_KEY, device=UNPUBLISHED, facts=facts, slowdown=slow)
    ((taught, _),) = with_reached([(teach(shown, trees_only=True), shown)])
    assert taught.traits["products 2"] == pytest.approx(log(0.5))
    assert "products 4" not in taught.traits


def narrow(device, *, least_m: float):
    """An expert that was never shown fewer rows than ``least_m``."""
    names = names_of(PRODUCT_KEY)
    low, high = np.full(len(names), -100.0), np.full(len(names), 100.0)
    low[names.index("log m")] = log(least_m)
    return expert(device, 1.0, 1.0, low=low, high=high)


def test_work_smaller_than_any_shown_is_unfamiliar_larger_work_is_not():
    one = narrow(A100, least_m=1024.0)
    sizes = np.array([16.0, 1024.0, 65536.0])
    values = features_of(PRODUCT_KEY, product_facts(sizes, 4096.0, 4096.0, "fp16", A100), A100)
    assert familiarity(PRODUCT_KEY, one, values) == pytest.approx([(16 / 1024) ** 2, 1, 1])


def test_a_device_asks_the_others_of_work_that_is_strange_to_it():
    own, other = narrow(H100, least_m=1024.0), expert(get("GH200-96GB"), 0.2, 0.2)
    sizes = np.array([16.0, 2048.0])
    answer = model(own, other).answer(product_facts(sizes, 4096.0, 4096.0, "fp16", H100), H100)
    assert 0.2 < answer.slowdown[0] < 0.95
    assert answer.slowdown[1] == pytest.approx(1.0)
    assert list(answer.known) == [False, True]
    assert answer.high[0] - answer.slowdown[0] > answer.high[1] - answer.slowdown[1]


@pytest.mark.parametrize("device", [H100, get("L4")])
def test_each_expert_is_asked_once_of_strange_work_and_its_launches(device, monkeypatch: pytest.MonkeyPatch):
    asked = []
    monkeypatch.setattr(Expert, "predict", lambda self, key, values: asked.append(self.device) or np.ones(len(values)))
    found = model(replace(narrow(H100, least_m=1024.0), launch_s=2e-5), replace(expert(A100, 1.0, 1.0), launch_s=2e-5))
    taught = correction(get("L4"), np.zeros((5, len(names_of(PRODUCT_KEY)))), np.full(5, -0.5))
    replace(found, corrections=(taught,)).answer(
        product_facts(np.full(3, 16.0), 4096.0, 4096.0, "fp16", device), device
    )
    own = [H100.name] if device is H100 else []
    assert sorted(asked) == sorted([*own, H100.name, A100.name])


def test_a_dtype_that_was_never_shown_widens_the_interval():
    names = names_of(PRODUCT_KEY)
    low, high = np.full(len(names), -100.0), np.full(len(names), 100.0)
    low[names.index("log item")] = high[names.index("log item")] = log(2)
    found = model(expert(A100, 1.0, 1.0, low=low, high=high))
    half, whole = (
        found.answer(product_facts(np.array([4096.0]), 4096.0, 4096.0, dtype, A100), A100) for dtype in ("fp16", "fp32")
    )
    assert whole.high - whole.slowdown > 5 * (half.high - half.slowdown)


def test_two_devices_are_joined_with_more_doubt_than_ten():
    size = np.geomspace(1e5, 1e9, 40)
    shown = [
        Shown(key=ADD, device=replace(A100, name=f"A100 {number}"), facts=np.concatenate([rows(each) for each in size]),
              slowdown=np.full(40, 0.5))
        for number in range(10)
    ]  # fmt: skip
    experts = [teach(each, trees_only=True) for each in shown]
    two, ten = join(experts[:2], shown[:2]), join(experts, shown)
    assert two.unseen[1] == pytest.approx(0.6 / 2**0.5, abs=0.02)
    assert ten.unseen[1] == pytest.approx(0.6 / 10**0.5, abs=0.02)


def test_the_bound_of_an_addition_is_longer_where_memory_is_slower():
    here, there = device_traits(A100), device_traits(H100)
    found = bound_elsewhere(ADD, features_of(ADD, rows(1e8), A100), here, there)
    assert found == pytest.approx(A100.dram_bytes_per_s / H100.dram_bytes_per_s)
    assert bound_elsewhere(ADD, features_of(ADD, rows(1e8), A100), here, {}) == 1


def test_what_was_measured_on_a_lesser_gpu_takes_no_longer_on_one_that_outdoes_it():
    from rooflight.prediction.model.devices import outdone_by

    names = [each.name for each in outdone_by(get("B200-SXM"))]
    assert names.index("H200-SXM-141GB") < names.index("H100-SXM5-80GB") < names.index("A100-SXM4-80GB")
    assert not {"B200-SXM", "MI300X"} & set(names)
    x = spec((64, 256, 14, 14), "bfloat16")
    normed = op("aten::native_batch_norm", {"input": x}, [x], training=True)  # measured on an H200 alone
    found = {name: Predictor().predict(normed, name) for name in ("B200-SXM", "H200-SXM-141GB")}
    assert found["B200-SXM"].extrapolated > found["H200-SXM-141GB"].extrapolated
    assert found["B200-SXM"].time_s <= found["H200-SXM-141GB"].time_s


def test_small_work_takes_no_longer_on_a_gpu_that_outdoes_those_where_it_was_measured():
    """A decode step of Llama-3.1-8B took 7.3 ms on an H200 and 7.9 on a B200, whose reductions are all large."""
    one = spec((1, 1, 4096), "float32")
    squares = op("aten::mean", {"self": one}, [spec((1, 1, 1), "float32")], dim=(-1,), keepdim=True)
    twice = op("aten::mul", {"self": one, "other": one}, [one])
    for work in (squares, twice):
        found = {name: Predictor().predict(work, name) for name in ("H200-SXM-141GB", "B200-SXM")}
        assert found["B200-SXM"].extrapolated
        assert found["B200-SXM"].time_s <= found["H200-SXM-141GB"].time_s < 5e-6


def test_what_a_launch_hides_of_a_kernel_is_unknown():
    """P100's were measured with launches of 30 µs: what is left of a small one is noise, 0.64 µs, the least of any."""
    found = Predictor().predict_shape("gelu_rows", {"rows": 64, "width": 512}, "fp32", "P100-PCIE-16GB")["fwd"]
    assert not found.extrapolated
    assert found.launch_s > 20e-6
    assert found.on_device.time_s == pytest.approx(small_kernel_s("aten::gelu", get("P100-PCIE-16GB")))


def test_many_shapes_take_no_longer_than_on_gpus_that_are_outdone_either():
    shapes = {"rows": np.array([1, 64]), "width": np.array([256, 4096])}
    predictor = Predictor()
    many = predictor.predict_shapes("gelu_rows", shapes, "bf16", "B200-SXM")
    for row, shape in enumerate(({"rows": 1, "width": 256}, {"rows": 64, "width": 4096})):
        there, here = (
            predictor.predict_shape("gelu_rows", shape, "bf16", each) for each in ("H200-SXM-141GB", "B200-SXM")
        )
        for direction, one in here.items():
            assert many[direction].time_s[row] == pytest.approx(one.time_s, rel=1e-6)
            assert one.time_s <= there[direction].time_s * (1 + 1e-12)  # equal where it is the older GPU's time


def test_answers_do_not_depend_on_which_models_were_read_before():
    x = spec((64, 4096), "bfloat16")
    work = op("aten::mul", {"self": x, "other": x}, [x])
    read = Predictor()
    assert read.models
    assert Predictor().predict(work, "B200-SXM") == read.predict(work, "B200-SXM")
