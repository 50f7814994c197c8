"""What bounds leave out: launches, small kernels, blocks of threads, caches; and how far below a bound times may be."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from builders import op, spec
from handmade_models import A100, products, shown

from rooflight.devices import get
from rooflight.prediction.fit.experts import learn, least_floor_s, teach
from rooflight.prediction.fit.rows import Shown
from rooflight.prediction.predictor import Predictor
from rooflight.prediction.work.facts import CONVOLUTION_KEY, FACTS, WorkKind, facts_of
from rooflight.prediction.work.features import features_of, over_bound
from rooflight.prediction.work.floors import FASTEST, beyond_read, least_slowdown

L2 = 40 * 2**20  # of an A100


def added(elements: int) -> np.ndarray:
    """Facts of an add of half-precision numbers: 2 x 2 bytes read and 2 written for each."""
    x = spec((elements,), "float16")
    found = facts_of((op("aten::add", (x, x), (x,)),), A100)
    assert found is not None
    assert found.key == "aten::add"
    return np.array([found.values])


def test_what_the_cache_can_hold_may_beat_the_bound_and_the_rest_not():
    # fits: no byte need come from memory, but no less than 1 / e of the bound is ever expected
    assert least_slowdown("aten::add", added(L2 // 6), A100).tolist() == [FASTEST]
    # 160 MiB: 40 of what is read may be there at the start, 40 of what is written at the end: half is left
    assert least_slowdown("aten::add", added(4 * L2 // 6), A100)[0] == pytest.approx(np.log(0.5), abs=1e-6)
    assert least_slowdown("aten::add", added(200 * L2), A100)[0] > np.log(0.998)
    assert least_slowdown("aten::add", added(1000), get("TPU v4"))[0] < 0  # its file lists no cache, it may have one
    assert least_slowdown("all-reduce", np.ones((3, len(FACTS[WorkKind.NETWORK]))), A100).tolist() == [0, 0, 0]


def test_arithmetic_is_no_faster_from_a_cache():
    facts = products(100)
    fact = dict(zip(FACTS[WorkKind.PRODUCT], facts.T, strict=True))
    least = least_slowdown("gemm", facts, A100)
    assert (least >= np.log(fact["compute_s"] / fact["bound_s"]) - 1e-12).all()
    computes = fact["compute_s"] == fact["bound_s"]
    assert computes.any()
    assert (least[computes] == 0).all()


@pytest.mark.parametrize(("taps", "share"), [(1.0, 1.0), (9.0, 1.0 / np.e), (2.0, 0.75)])
def test_convolutions_need_fewer_products_than_they_have_flops(taps: float, share: float):
    names = FACTS[WorkKind.CONVOLUTION]
    facts = np.ones((1, len(names)))
    facts[0, [names.index("bound_s"), names.index("compute_s")]] = 1e-3
    facts[0, names.index("memory_s")] = 1e-9
    facts[0, names.index("taps")] = taps
    # 1.5 of 9 would be a sixth, but no less than 1 / e is expected
    assert np.exp(least_slowdown(CONVOLUTION_KEY, facts, A100)[0]) == pytest.approx(share)


def cached(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Adds of all sizes; what fits the cache takes 0.8 of its bound, all else 1.1, within 3 %."""
    rng = np.random.default_rng(seed)
    facts = np.concatenate([added(int(each)) for each in np.exp(rng.uniform(np.log(1e5), np.log(1e9), count))])
    fits = facts[:, FACTS[WorkKind.ROWS].index("bytes")] < L2
    return facts, np.where(fits, np.log(0.8), np.log(1.1)) + rng.normal(0, 0.03, count)


def test_intervals_hold_times_that_beat_the_bound_and_no_answer_does():
    facts, slowdown = cached(600, seed=1)
    model = learn([Shown(key="aten::add", device=A100, facts=facts, slowdown=slowdown)])
    fresh, true = cached(500, seed=2)
    answer = model.answer(fresh, A100)
    assert (answer.slowdown >= 0).all()
    holds = (answer.low <= true) & (true <= answer.high)
    beaten = true < -0.1
    assert beaten.sum() > 100
    assert holds[beaten].mean() > 0.8
    assert holds[~beaten].mean() > 0.8
    found = Predictor.of([model])
    x = spec((L2 // 12,), "float16")
    estimate = found.predict(op("aten::add", (x, x), (x,)), A100)
    assert estimate.may_beat_bound
    assert estimate.time_s == estimate.bound_s
    # work of which the cache holds next to nothing does not beat it
    large = spec((500 * L2,), "float16")
    assert not found.predict(op("aten::add", (large, large), (large,)), A100).may_beat_bound


def test_small_work_takes_the_floor_that_was_measured():
    """Every product takes 12 µs beyond 1.3 times its bound: the floor is at most 12 µs and 0.3 of the least bounds."""
    facts = products(400, seed=1, largest=8192)
    bound_s = facts[:, 0]
    teacher = shown(np.log((1.3 * bound_s + 12e-6) / bound_s), facts)
    expert = teach(teacher, trees_only=True)
    assert expert.floor_s == pytest.approx(12e-6, rel=0.05)
    tiny = products(50, seed=2, largest=32)
    values = features_of("gemm", tiny, A100)
    times = tiny[:, 0] * np.exp(expert.predict("gemm", values))
    assert times == pytest.approx(12e-6, rel=0.1)  # a factor that is one of many sizes would not be


def test_a_floor_needs_small_work_that_is_slow():
    facts = products(400, seed=1)
    values = features_of("gemm", facts, A100)
    assert least_floor_s("gemm", values, np.full(400, 0.5)) == 0
    assert least_floor_s("gemm", values, np.log(1.0 / np.exp(values[:, 0]))) == 100e-6  # all take a second: no launch
    assert least_floor_s("gemm", values, np.full(400, 20.0)) == 5e-6  # what grows with its bound shows no floor
    assert least_floor_s("all-reduce", values, np.full(400, 2.0)) == 0
    assert over_bound("gemm", values, 0.0).tolist() == [0] * 400
    # one op of 1 µs with a floor of 3: log 4
    values[0, 0] = np.log(1e-6)
    assert over_bound("gemm", values, 3e-6)[0] == pytest.approx(np.log(4))


H100 = get("H100-SXM5-80GB")
NOTHING = Predictor.empty()


def layer_norm(shape, over):
    x, each = spec(shape), spec(over)
    rows = spec((*shape[: len(shape) - len(over)], *[1] * len(over)))
    inputs = {"input": x, "weight": each, "bias": each}
    return op("aten::native_layer_norm", inputs, [x, rows, rows], normalized_shape=over, eps=1e-5)


def group_norm(shape, groups):
    x, each, stats = spec(shape), spec((shape[1],)), spec((shape[0], groups))
    n, c, *space = shape
    settings = {"N": n, "C": c, "HxW": prod(space), "group": groups, "eps": 1e-5}
    return op("aten::native_group_norm", {"input": x, "weight": each, "bias": each}, [x, stats, stats], **settings)


def rows_of(work) -> float:
    found = facts_of([work], H100)
    return dict(zip(FACTS[WorkKind.ROWS], found.values, strict=True))["rows"]


def test_rows_are_what_is_normalized_together():
    assert rows_of(layer_norm((16, 64, 256, 256), (64, 256, 256))) == 16
    assert rows_of(layer_norm((8, 512, 1024), (1024,))) == 8 * 512
    assert rows_of(group_norm((16, 64, 256, 256), 8)) == 16 * 8


def test_few_long_rows_do_not_fill_a_device():
    work = layer_norm((16, 64, 256, 256), (64, 256, 256))
    few = NOTHING.predict(work, H100)
    # 16 x 4,194,304 numbers of 4 B: 16.8 MB a row, which a block reads at 4 GB/s, and parameters as long
    assert few.time_s == pytest.approx(16.8e6 / 4e9, rel=0.1)
    assert few.low_s < few.time_s < few.high_s
    many = NOTHING.predict(layer_norm((65536, 1024), (1024,)), H100)
    assert many.time_s == pytest.approx(2 * many.bound_s)  # typical, as without rows
    # 128 groups of 524,288 numbers: 2.1 MB each; KernelBench measured 0.675 ms
    groups = NOTHING.predict(group_norm((16, 64, 256, 256), 8), H100)
    assert groups.time_s == pytest.approx(2.1e6 / 4e9, rel=0.05)
    cpu = NOTHING.predict(work, replace(H100, name="a CPU", kind="cpu"))  # has no blocks
    assert cpu.time_s == pytest.approx(2 * cpu.bound_s)


def test_reading_a_number_is_a_copy_and_no_kernel():
    facts = np.ones((1, len(FACTS[WorkKind.ROWS])))
    facts[:, 0] = 1e-12
    slow = np.log(np.array([18e-6 / 1e-12]))
    less = beyond_read("aten::_local_scalar_dense", facts, H100, slow)
    assert 1e-12 * np.exp(slow - less) == pytest.approx(2.2e-6)
    assert beyond_read("aten::_local_scalar_dense", facts, H100, np.zeros(1)) == 0  # never slower than was answered
    assert beyond_read("aten::sqrt", facts, H100, slow) == 0
