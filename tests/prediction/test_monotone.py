"""Times of work unlike what was measured do not fall where the work grows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.costs.operators import registry
from rooflight.devices import get
from rooflight.prediction.model.monotone import SIZES, Batch, around, has_sizes, levelled, resized, sizes_of
from rooflight.prediction.predictor import Predictor
from rooflight.prediction.work.facts import FACTS, FactRows, Floats, WorkKind, facts_of_shapes, kind_of, on_lesser

KEY = "aten::gelu"
NAMES = FACTS[WorkKind.ROWS]
US = 1e-6
MOST_FALL = 0.25
"""Of sizes beside the lattice all at once; less than 1 % along one size with the others on it."""


def rows(*sizes: tuple[int, int], ops: int = 1, tensors: int = 2) -> Floats:
    """Facts of pointwise ops: 4 bytes an element, read and written at 1 TB/s."""
    found = []
    for height, width in sizes:
        moved = 8.0 * height * width
        values = {"bound_s": moved / 1e12, "memory_s": moved / 1e12, "bytes": moved, "ops": ops, "item": 4,
                  "rows": height, "width": width, "fresh": moved / 2, "tensors": tensors}  # fmt: skip
        found.append([float(values.get(name, 0.0)) for name in NAMES])
    return np.array(found)


def answers(seconds, known=None) -> Callable[..., Batch]:
    """Models that answer seconds by rows and width, within a factor of two."""

    def asked(facts: Floats) -> Batch:
        sizes = sizes_of(KEY, facts)
        time_s = seconds(sizes)
        extrapolated = ~known(sizes).astype(bool) if known else np.ones(len(facts), dtype=bool)
        return Batch(time_s=time_s, low_s=time_s / 2, high_s=time_s * 2, bound_s=facts[:, 0], extrapolated=extrapolated)

    return asked


def level(asked: Callable[..., Batch], facts: Floats) -> Batch:
    answered = asked(facts)
    return levelled(KEY, facts, answered, np.flatnonzero(answered.extrapolated), asked, lambda works: works[:, 0])


def test_a_lattice_has_powers_of_two_then_halves_then_quarters_between_them():
    assert [each.tolist() for each in around(np.array([1.0, 3, 8, 16, 17, 31, 64, 65, 81, 127, 4097]))] == [
        [1, 2, 8, 16, 16, 24, 64, 64, 80, 112, 4096],
        [1, 4, 8, 16, 24, 32, 64, 80, 96, 128, 5120],
    ]


def test_between_the_points_of_the_lattice_times_are_linear_in_each_size():
    # a launch of 5 us and 3 ns an element, with steps of 40 % for odd sizes, which are never asked
    odd = answers(lambda sizes: (5 * US + 3e-9 * sizes.prod(axis=1)) * np.where((sizes % 8 > 0).any(axis=1), 1.4, 1.0))
    found = level(odd, rows((100, 100), (70, 300)))
    # 100 is between 96 and 112, 70 between 64 and 80, 300 between 256 and 320: a product is linear in either of them
    assert found.time_s == pytest.approx([5 * US + 3e-9 * 10_000, 5 * US + 3e-9 * 21_000])
    assert found.high_s == pytest.approx(2 * found.time_s)


def test_work_takes_no_longer_than_if_it_were_padded():
    # below 64 columns 60 us, then 7 us, and 10 ns a row from 1,024 rows on
    spike = answers(
        lambda sizes: np.where(sizes[:, 1] < 64, 60 * US, 7 * US) + 1e-8 * np.maximum(0, sizes[:, 0] - 1024)
    )
    found = level(spike, rows((1, 2), (16, 32), (2048, 32), (16, 64)))
    # 2,048 rows: 7 us and 1,024 x 10 ns
    assert found.time_s == pytest.approx([7 * US, 7 * US, 17.24 * US, 7 * US])
    # the interval is that of the padded work, its lower end no higher than before
    assert found.low_s == pytest.approx([3.5 * US, 3.5 * US, 8.62 * US, 3.5 * US])
    assert found.high_s == pytest.approx([14 * US, 14 * US, 34.48 * US, 14 * US])


def test_work_takes_the_time_of_what_is_padded_in_two_sizes_and_a_dip_between_powers_of_two_is_filled():
    both = answers(lambda sizes: np.where((sizes >= 256).all(axis=1), 5 * US, 20 * US))
    assert level(both, rows((100, 100), (256, 100), (256, 256))).time_s == pytest.approx([5 * US] * 3)
    dip = answers(lambda sizes: np.where(sizes[:, 1] == 96, 2 * US, 9 * US))
    # the dip itself is no shorter than 64 and 128 columns
    assert level(dip, rows((1, 96), (1, 128))).time_s == pytest.approx([9 * US, 9 * US])
    # known work stays and is trusted
    narrow = answers(lambda sizes: np.where(sizes[:, 1] < 512, 30 * US, 6 * US), lambda sizes: sizes[:, 1] >= 512)
    found = level(narrow, rows((4, 100), (4, 700), (5, 511)))
    assert found.time_s == pytest.approx([6 * US] * 3)
    assert found.extrapolated.tolist() == [True, False, True]


def test_what_has_no_sizes_stays_as_it_is():
    steps = answers(lambda sizes: 1 * US * (1 + sizes.sum(axis=1) % 7))
    for facts in (rows((100, 100), tensors=40), rows((100, 100), ops=2)):
        assert not has_sizes(KEY, facts).any()
        assert level(steps, facts).time_s == steps(facts).time_s
    assert not has_sizes("aten::convolution", np.ones((3, len(FACTS[WorkKind.CONVOLUTION])))).any()


def test_no_time_is_below_the_bound():
    # 8 x 4,096 x 4,096 bytes take 134 us; 3,000 rows, as they are asked, a tenth of that
    short = answers(lambda sizes: 1e-13 * sizes.prod(axis=1))
    facts = rows((3000, 4096))
    found = level(short, facts)
    assert found.time_s == facts[:, 0]
    assert (found.low_s <= found.time_s).all()
    assert (found.time_s <= found.high_s).all()


def wild(seed: int) -> Callable[..., Batch]:
    """Any answers between a microsecond and a millisecond, of no less than the bound."""

    def seconds(at: Floats) -> Floats:
        share = (at @ np.array([0.7548776, 0.5698402]) * 7919 + seed * 0.381) % 1.0
        return np.maximum(8e-12 * at.prod(axis=1), US * np.exp(6.9 * share))

    return answers(seconds)


powers = st.integers(0, 14).map(lambda power: 1 << power)


@given(seed=st.integers(0, 1000), small=st.tuples(powers, powers), grown=st.tuples(powers, powers))
@settings(deadline=None, max_examples=100)
def test_models_however_wild_give_no_fall_between_powers_of_two(seed, small, grown):
    large = small[0] * min(8, grown[0]), small[1] * min(8, grown[1])
    shorter, longer = level(wild(seed), rows(small, large)).time_s
    assert shorter <= longer * (1 + 1e-9)


@given(
    seed=st.integers(0, 1000),
    fixed=powers,
    size=st.integers(64, 20_000),
    grown=st.integers(0, 20_000),
    by_rows=st.booleans(),
)
@settings(deadline=None, max_examples=100)
def test_nor_along_one_size_past_the_next_power_of_two(seed, fixed, size, grown, by_rows):
    """Both ends of a fall that is left are within one cell of powers of two."""
    whole = (1 << (size - 1).bit_length()) + grown
    works = rows((size, fixed), (whole, fixed)) if by_rows else rows((fixed, size), (fixed, whole))
    shorter, longer = level(wild(seed), works).time_s
    assert shorter <= longer * (1 + 1e-9)


SHIPPED = Predictor()
OPERATORS = {"gelu_rows": (("rows", 256), ("width", 256)), "softmax_rows": (("rows", 256), ("width", 256)),
             "batched_mm": (("b", 1), ("m", 256), ("n", 256), ("k", 64))}  # fmt: skip


@given(
    operator=st.sampled_from(sorted(OPERATORS)),
    device=st.sampled_from(["MI300X", "B200-SXM", "GH200-96GB"]),
    dtype=st.sampled_from(["fp32", "bf16", "fp8"]),
    sizes=st.tuples(*[st.integers(1, 300) | st.integers(1, 12_000)] * 4),
    which=st.integers(0, 3),
    more=st.integers(1, 40),
)
@settings(deadline=None, max_examples=30, derandomize=True)
def test_shipped_models_hardly_let_time_fall_where_work_unlike_the_measured_grows(
    operator, device, dtype, sizes, which, more
):
    small = {name: min(size, 64) if name == "b" else size for (name, _), size in zip(OPERATORS[operator], sizes)}  # noqa: B905
    name, tile = OPERATORS[operator][which % len(small)]
    large = {**small, name: (-(-small[name] // tile) + more) * tile}
    shapes = {each: np.array([small[each], large[each]]) for each in small}
    batch = next(iter(SHIPPED.predict_shapes(operator, shapes, dtype, device).values()))
    if batch.extrapolated.any():
        assert batch.time_s[1] >= (1 - MOST_FALL) * batch.time_s[0]
    alone = [next(iter(SHIPPED.predict_shape(operator, each, dtype, device).values())) for each in (small, large)]
    assert batch.time_s == pytest.approx([each.time_s for each in alone], rel=1e-12)
    assert (batch.bound_s <= batch.time_s).all()
    assert ((batch.low_s <= batch.time_s) & (batch.time_s <= batch.high_s)).all()


DEVICE = get("A100-SXM4-80GB")
EXACT = ("batched_mm", "softmax_rows", "gelu_rows", "add")
SHAPES = {"batched_mm": ("b", "m", "n", "k"), "linear": ("rows", "inputs", "outputs")}


def facts(name: str, sizes: tuple[int, ...]) -> list[FactRows]:
    operator = registry.find(name)
    given_sizes = dict(zip(SHAPES.get(name, ("rows", "width")), sizes, strict=False))
    columns = {size: np.array([value]) for size, value in operator.shape(given_sizes).items()}
    return [
        found
        for direction in operator.directions
        for found in facts_of_shapes(operator, columns, "float32", direction, DEVICE)
    ]


four = st.tuples(*[st.integers(2, 5000)] * 4)  # of a side of 1 nobody can tell whether it lies transposed


@given(name=st.sampled_from(EXACT), one=four, other=four)
@settings(deadline=None, max_examples=60)
def test_of_one_plain_op_they_are_exact(name, one, other):
    for small, large in zip(facts(name, one), facts(name, other), strict=True):
        if len(set(one[1:])) < 3:
            continue  # a second product's sizes are told by which of the first's they equal
        found = resized(small.key, small.values, sizes_of(small.key, large.values))
        # vector FLOPs are rounded up to whole ones per row in some formulas
        assert found[0] == pytest.approx(large.values[0], rel=1e-9)


def test_of_attention_flops_grow_with_queries_times_keys_and_bytes_with_their_sum():
    operator = registry.find("sdpa")
    shape = operator.shape({"b": 1, "h": 8, "kv_heads": 8, "q": 128, "kv": 128, "d": 64, "causal": 0})
    (small,) = facts_of_shapes(operator, {n: np.array([v]) for n, v in shape.items()}, "float16", "fwd", DEVICE)
    larger = resized(small.key, small.values, np.array([[8.0, 256.0, 128.0, 64.0]]))[0]
    # 4 * 8 heads * 128 * 128 * 64 FLOPs; twice the queries: twice the FLOPs, and (2 + 1) / (1 + 1) of the bytes
    assert small.values[0][4] == 4 * 8 * 128 * 128 * 64
    assert larger[4] == 2 * small.values[0][4]
    assert larger[3] == pytest.approx(1.5 * small.values[0][3])


def test_a_layer_whose_batch_shares_the_weights_moves_them_once():
    (forward, *_) = facts("linear", (1000, 512, 768))
    assert SIZES[kind_of(forward.key)] == ("b", "m", "n", "k")
    b, m, n, k = sizes_of(forward.key, forward.values)[0]
    assert (b * m, n, k) == (1000, 768, 512)
    found = resized(forward.key, forward.values, np.array([[b, 2 * m, n, k]]))
    (twice, *_) = facts("linear", (2000, 512, 768))
    assert found[0][3] == pytest.approx(twice.values[0][3], rel=0.01)  # beside them there is a bias


def test_the_same_sizes_give_the_same_facts():
    for name in (*EXACT, "linear"):
        for each in facts(name, (3, 17, 33, 65)):
            assert resized(each.key, each.values, sizes_of(each.key, each.values)) == pytest.approx(each.values)


def test_small_ops_on_elements_take_a_launch_whatever_they_compute():
    for device, name in (("H100-SXM5-80GB", "div"), ("H200-SXM-141GB", "pow"), ("H200-SXM-141GB", "mul")):
        (few,) = SHIPPED.predict_shape(name, {"rows": 1, "width": 256}, "fp32", device).values()
        assert 1 * US < few.time_s <= 2 * US  # 18.2 us, 28.6 and 27.8 before
        assert few.low_s < few.time_s < few.high_s


def test_an_all_reduce_takes_no_less_than_nccl_and_no_longer_than_on_more_nodes():
    device = "H100-SXM5-80GB"
    (message,) = SHIPPED.predict_shape("all_reduce", [1024, 1, 8], "bf16", device).values()
    assert message.low_s < 10 * US < message.time_s < message.high_s  # 3.2 us before
    two, four, many = (next(iter(SHIPPED.predict_shape("all_reduce", [1 << 25, nodes, 8], "bf16", device).values()))
                       for nodes in (2, 4, 8))  # fmt: skip
    assert two.time_s <= four.time_s <= many.time_s  # 5.3 ms, 0.38 and 0.38 before
    assert two.high_s <= four.high_s <= many.high_s


def test_no_product_reaches_more_of_the_peak_than_any_that_was_measured():
    for device, dtype in (("A100-SXM4-80GB", "bf16"), ("B200-SXM", "fp32")):
        (found, _) = SHIPPED.predict_shape("linear", [65536, 8192, 8192, 0], dtype, device).values()
        assert found.bound_s < 0.95 * found.time_s < 0.9 * found.high_s


def test_attention_is_no_faster_backward_than_forward():
    rng = np.random.default_rng(0)
    length = 1 << rng.integers(4, 13, 100)
    shapes = {"b": 1 << rng.integers(0, 6, 100), "h": np.full(100, 16), "q": length, "kv": length}
    shapes |= {"kv_heads": shapes["h"], "d": 32 << rng.integers(0, 3, 100), "causal": rng.integers(0, 2, 100)}
    for device in ("H100-SXM5-80GB", "A100-SXM4-80GB"):
        forward, backward = SHIPPED.predict_shapes("sdpa", shapes, "bf16", device).values()
        assert (backward.time_s >= 0.95 * forward.time_s).all()  # the facts of the forward are about right


def test_more_bandwidth_is_never_slower_on_the_same_chip():
    rng = np.random.default_rng(0)
    shapes = {"rows": 1 << rng.integers(0, 14, 40), "width": rng.integers(1, 9000, 40)}
    for name in ("gelu_rows", "softmax_rows", "mul"):
        given = shapes | ({"scalar": 0} if name == "mul" else {"tanh": 0} if name == "gelu_rows" else {})
        slow, fast = (next(iter(SHIPPED.predict_shapes(name, given, "bf16", device).values()))
                      for device in ("H100-SXM5-80GB", "GH200-144GB"))  # fmt: skip
        assert (fast.time_s <= 1.001 * slow.time_s).all(), name  # softmax took up to 3.2 times as long


def test_facts_on_a_device_of_the_same_chip_have_the_bound_there():
    fast, slow = get("H200-SXM-141GB"), get("H100-SXM5-80GB")
    operator = registry.find("gelu_rows")
    columns = {"rows": np.array([4096]), "width": np.array([1024]), "tanh": np.array([0])}
    ((one,), (other,)) = (facts_of_shapes(operator, columns, "float32", "fwd", each) for each in (fast, slow))
    assert on_lesser(one.key, one.values, fast, slow) == pytest.approx(other.values, rel=1e-3)
