"""Facts of the same work at other sizes are those that its ops would have."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.devices import get
from rooflight.operators import registry
from rooflight.prediction.model.monotone import SIZES, resized, sizes_of
from rooflight.prediction.work.facts import FactRows, facts_of_shapes, kind_of

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
