"""Facts of work, and the features made of them."""

from __future__ import annotations

from dataclasses import replace
from math import log

import numpy as np
import pytest
from builders import op, spec
from gemm_table import A100, gemm
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.costs.cost import OpCost
from rooflight.costs.registry import cost_of, formula
from rooflight.devices import all_devices, get
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.prediction.work.facts import (
    FACTS,
    PRODUCT_KEY,
    WorkKind,
    attention_sizes,
    facts_of,
    kind_of,
    product_sizes,
)
from rooflight.prediction.work.features import features_of, names_of, steady_features
from rooflight.records.signature import OpSignature

X = spec((8, 96))
EXP = op("aten::exp", {"self": X}, [X])
ADD = op("aten::add", {"self": X, "other": X}, [X])
QUERY, KEY = spec((2, 8, 128, 80), "float16"), spec((2, 2, 512, 80), "float16")
ATTENTION = op(
    "aten::scaled_dot_product_attention", {"query": QUERY, "key": KEY, "value": KEY}, [QUERY], is_causal=False
)
MM = gemm(64, 16, 32)
BMM = op("aten::bmm", {"self": spec((3, 4, 5)), "mat2": spec((3, 5, 6))}, [spec((3, 4, 6))])
WORKS = {
    "product": (MM,),
    "products": (MM, BMM),
    "attention": (ATTENTION,),
    "rows": (EXP,),
    "chain": (EXP, ADD, EXP),
    "network": (op("c10d::allreduce_", {"tensors": X}, [X], group_size=4),),
}
NOWHERE = DeviceSpec(name="nowhere", vendor="", architecture="", kind="other", datasheet=A100.datasheet)


def features(ops: tuple[OpSignature, ...], device: DeviceSpec = A100) -> dict[str, float]:
    facts = facts_of(ops, device)
    assert facts is not None
    (row,) = features_of(facts.key, np.array([facts.values]), device)
    return dict(zip(names_of(facts.key), row.tolist(), strict=True))


def facts(ops: tuple[OpSignature, ...], device: DeviceSpec = A100) -> dict[str, float]:
    found = facts_of(ops, device)
    assert found is not None
    return dict(zip(FACTS[kind_of(found.key)], found.values, strict=True))


@pytest.mark.parametrize("ops", WORKS.values(), ids=WORKS)
def test_every_device_has_features_of_every_kind(ops: tuple[OpSignature, ...]):
    for device in (*all_devices(), NOWHERE):
        found = facts_of(ops, device)
        if found is None:  # nothing is known that bounds such work there
            assert device.dram_bytes_per_s is None
            continue
        assert found.bound_s == found.values[0] > 0
        values = features_of(found.key, np.array([found.values] * 2), device)
        assert values.shape == (2, len(names_of(found.key)))
        assert np.isfinite(values).all()


def test_the_key_tells_the_kind():
    found = {name: facts_of(ops, A100) for name, ops in WORKS.items()}
    assert {name: each and each.key for name, each in found.items()} == {
        "product": PRODUCT_KEY,
        "products": PRODUCT_KEY,
        "attention": "aten::scaled_dot_product_attention",
        "rows": "aten::exp",
        "chain": "aten::exp+aten::add",  # each name once
        "network": "all-reduce",
    }
    kinds = ["PRODUCT", "PRODUCT", "ATTENTION", "ROWS", "ROWS", "NETWORK"]
    assert [kind_of(each.key).name for each in found.values() if each] == kinds


@pytest.mark.parametrize("key", [PRODUCT_KEY, "aten::scaled_dot_product_attention", "aten::exp"])
def test_steady_features_are_some_of_all_and_none_of_them_is_the_size_of_the_work(key: str):
    names, steady = names_of(key), steady_features(key)
    assert len(set(names)) == len(names)
    assert list(steady) == sorted(set(steady))
    assert len(steady) < len(names)
    assert bool(steady) is (kind_of(key) is WorkKind.PRODUCT)
    kept = {names[place] for place in steady}
    assert not kept & {"log bound", "log bytes", "log matrix", "log vector", "log waves", "log m n", "log rows"}
    assert names[0] == "log bound"  # what tells that work is larger than any that was shown


def test_the_facts_of_several_ops_are_sums_or_those_of_the_largest():
    one, two = facts((MM,)), facts((MM, MM))
    for name in ("bound_s", "compute_s", "memory_s", "bytes", "matrix", "ops", "products"):
        assert two[name] == pytest.approx(2 * one[name])
    chain, large = facts((EXP, ADD)), spec((1000, 7))
    assert chain["ops"] == 2
    assert chain["bytes"] == facts((EXP,))["bytes"] + facts((ADD,))["bytes"]
    assert facts((EXP, op("aten::neg", {"self": large}, [large])))["rows"] == 1000
    largest_first, largest_last = facts((BMM, gemm(4096, 4096, 64))), facts((gemm(4096, 4096, 64), BMM))
    assert largest_first == largest_last
    assert [largest_first[name] for name in ("b", "m", "n", "k")] == [1, 4096, 4096, 64]
    assert [largest_first[name] for name in ("other b", "other m", "other n")] == [3, 4, 6]
    assert [one[name] for name in ("other b", "other m", "other n")] == [1, 64, 16]  # its own, where there is no other


def test_sizes_of_products():
    assert product_sizes(MM) == (1, 64, 16, 32)
    assert product_sizes(BMM) == (3, 4, 6, 5)
    added = op("aten::addmm", {"self": spec((6,)), "mat1": spec((4, 5)), "mat2": spec((5, 6))}, [spec((4, 6))])
    assert product_sizes(added) == (1, 4, 6, 5)
    linear = op("aten::linear", {"input": spec((2, 3, 5)), "weight": spec((7, 5))}, [spec((2, 3, 7))])
    assert product_sizes(linear) == (2, 3, 7, 5)
    mv = op("aten::mv", {"self": spec((3, 4)), "vec": spec((4,))}, [spec((3,))])
    assert [product_sizes(other) for other in (EXP, gemm(0, 4, 4), gemm(4, 0, 4), mv)] == [None] * 4


def test_an_op_of_the_user_declared_a_product_has_the_facts_of_one(restored_formulas):
    def cost_like_mm(signature: OpSignature) -> OpCost:
        found = cost_of(replace(signature, name="aten::mm"))
        assert isinstance(found, OpCost)
        return found

    formula("mylib::mm", product=True, epilogue=True)(cost_like_mm)
    formula("mylib::undeclared")(cost_like_mm)
    assert product_sizes(replace(MM, name="mylib::mm")) == (1, 64, 16, 32)
    assert facts_of((replace(MM, name="mylib::mm"),), A100) == facts_of((MM,), A100)
    undeclared = facts_of((replace(MM, name="mylib::undeclared"),), A100)
    assert undeclared is not None
    assert undeclared.key == "mylib::undeclared"


def test_sizes_of_attention():
    # 2 x 8 heads, 4 of them for each key-value head
    assert attention_sizes(ATTENTION) == (16, 128, 512, 80, 4, False)
    assert attention_sizes(replace(ATTENTION, attributes=(("is_causal", True),))) == (16, 128, 512, 80, 4, True)
    assert attention_sizes(EXP) is None


def test_operands_that_lie_transposed_are_told():
    right = spec((32, 16), "float16", strides=(1, 32))
    turned = op("aten::mm", {"self": spec((64, 32), "float16"), "mat2": right}, [spec((64, 16), "float16")])
    assert [facts((MM,))[side] for side in ("left", "right")] == [0, 0]
    assert [facts((turned,))[side] for side in ("left", "right")] == [0, 1]
    assert features((turned,))["right"] == 1


def test_features_of_a_product_by_hand():
    found = features((gemm(384, 256, 96),))
    # 2 * 384 * 256 * 96 FLOPs at 312 TFLOP/s; (384 * 96 + 96 * 256 + 384 * 256) * 2 bytes at 2039 GB/s
    compute_s, memory_s = 2 * 384 * 256 * 96 / 312e12, (384 * 96 + 96 * 256 + 384 * 256) * 2 / 2039e9
    assert memory_s > compute_s
    assert found["log bound"] == pytest.approx(log(memory_s))
    assert found["log ridge"] == pytest.approx(log(compute_s / memory_s))
    assert found["log m k"] == pytest.approx(log(384 * 96))
    assert (found["align m"], found["align n"], found["align k"]) == (7, 8, 5)  # 3 * 128, 256, 3 * 32
    # 3 x 2 blocks of 128 x 128 on 108 units
    assert found["log waves"] == pytest.approx(log(6 / 108))
    assert found["filled 128x128"] == pytest.approx(6 / 108)
    assert found["log vector"] == -1  # there are none
    assert found["log item"] == pytest.approx(log(2))


def test_features_of_attention_and_of_rows_by_hand():
    found = features((ATTENTION,))
    # 16 heads of one block of 128 queries on 108 units; a width of 80 computed as 96
    assert found["log waves"] == pytest.approx(log(16 / 108))
    assert found["padded"] == pytest.approx(80 / 96)
    assert found["group"] == 4
    found = features((EXP,))
    assert found["log rows a unit"] == pytest.approx(log(8 / 108))
    assert found["align width"] == 5  # 96 = 3 * 32
    # read and written, 4 bytes each; an A100 has 40 MB of cache, whatever the bandwidth
    cache_bytes = A100.memory[0].capacity_bytes
    assert cache_bytes
    assert found["log bytes over cache"] == pytest.approx(log(2 * 8 * 96 * 4 / cache_bytes))


def test_what_is_called_attention_but_is_not_mostly_that_counts_as_rows():
    large = spec((1 << 21,))
    exp = op("aten::exp", {"self": large}, [large])
    flat = spec((64, 80), "float16")
    odd = op("aten::scaled_dot_product_attention", {"query": flat, "key": flat, "value": flat}, [flat])
    for ops in ((ATTENTION, exp), (odd,)):
        found = facts_of(ops, A100)
        if found is not None:
            assert kind_of(found.key) is WorkKind.ROWS
            assert set(features(ops)) == set(names_of(found.key))
    assert facts((exp, ATTENTION))["rows"] == 1
    whole = facts_of((exp, ATTENTION), A100)
    assert whole is not None
    assert whole.key == "rows of aten::exp+aten::scaled_dot_product_attention"


def test_work_without_a_cost_or_with_nothing_to_do_has_no_facts():
    unknown = op("nobody::knows", {"x": X}, [X])
    view = op("aten::view", {"self": spec((8,), storage=0)}, [spec((2, 4), storage=0)])
    assert facts_of((), A100) is None
    assert facts_of((unknown,), A100) is None
    assert facts_of((EXP, unknown), A100) is None
    assert facts_of((view,), A100) is None
    assert facts_of((EXP, view), A100) is not None


sizes = st.integers(1, 10_000)


@settings(deadline=None)
@given(st.lists(sizes, max_size=4), st.sampled_from(["float32", "bfloat16", "int64", "bool"]))
def test_rows_of_any_shape_have_finite_features(shape: list[int], dtype: str):
    tensor = spec(shape, dtype)
    found = features((op("aten::clone", {"self": tensor}, [tensor]),))
    assert np.isfinite(list(found.values())).all()


@settings(deadline=None)
@given(sizes, sizes, sizes, st.permutations(range(3)))
def test_features_do_not_depend_on_what_stands_beside_them(m: int, n: int, k: int, order: list[int]):
    found = [facts_of((each,), A100) for each in (gemm(m, n, k), gemm(n, k, m), gemm(64, 64, 64))]
    rows = np.array([each.values for each in found if each])
    together = features_of(PRODUCT_KEY, rows, A100)
    assert np.array_equal(features_of(PRODUCT_KEY, rows[order], A100), together[order])
    assert np.array_equal(features_of(PRODUCT_KEY, rows[:1], A100), together[:1])


def test_what_takes_next_to_nothing_gives_a_chain_no_name():
    large, scalar = spec((1 << 22,)), spec((1,))
    exp, count = op("aten::exp", {"self": large}, [large]), op("aten::add_", {"self": scalar}, [scalar])
    found = facts_of((count, exp), A100)
    assert found is not None
    assert found.key == "aten::exp"
    assert facts((count, exp))["ops"] == 2  # it still counts
    both = facts_of((exp, op("aten::add", {"self": large}, [large])), A100)
    assert both is not None
    assert both.key == "aten::exp+aten::add"


@pytest.mark.parametrize("tokens", [1, 256, 65536])
def test_an_op_that_waits_for_memory_looks_the_same_whatever_the_balance_of_the_device(tokens: int):
    # an A100 has 9.6 FLOPs a byte, an H100 20: a tree that told them apart took all of an H100's norms for tiny ones
    x = spec((tokens, 4096), "float16")
    norm = op("aten::_fused_rms_norm", {"input": x}, [x, spec((tokens, 1), "float16")])
    ridges = {features((norm,), get(name))["log ridge"] for name in ("A100-SXM4-80GB", "H100-SXM5-80GB")}
    assert ridges == {-1.4}


def test_a_list_has_a_row_a_tensor_whatever_their_shapes():
    each = [spec((50, 30), storage=0), spec((20,), storage=1)]
    step = op("aten::_foreach_mul_", {"self": each}, each)
    assert (facts((step,))["rows"], facts((step,))["width"]) == (2, 760)  # (1500 + 20) / 2


def test_collectives_of_a_kind_share_a_key_and_are_told_by_bytes_and_topology():
    for name in ("c10d::allreduce_", "_c10d_functional::all_reduce"):
        reduced = op(name, {"tensors": X}, [X], group_size=16, group_nodes=2)
        found = facts_of((reduced,), A100)
        assert found is not None
        assert found.key == "all-reduce"
        sent = 2 * X.nbytes * 15 // 16
        link = A100.link_bytes_per_s
        assert link is not None
        # each byte leaves a rank once where switches add: over a link of 300 GB/s and a port of 100 GB/s
        assert found.bound_s == pytest.approx(X.nbytes / 400e9)
        sizes = {"log ranks": log(16), "log nodes": log(2), "log ranks a node": log(8)}
        assert features((reduced,)) == pytest.approx({"log link": log(sent / link), "log sent": log(sent), **sizes})


def test_a_link_does_not_care_what_bytes_mean():
    single, half = spec((1000,)), spec((2000,), "float16")
    found = [features((op("c10d::allreduce_", {"tensors": x}, [x], group_size=4),)) for x in (single, half)]
    assert found[0] == pytest.approx(found[1])


@pytest.mark.parametrize(
    ("attributes", "nodes"),
    [({}, 1), ({"group_size": 8}, 1), ({"group_size": 8, "group_nodes": 4}, 2), ({"group_nodes": -3}, 1)],
)
def test_two_ranks_take_part_in_a_send_whatever_the_group(attributes: dict[str, int], nodes: int):
    found = facts((op("c10d::send", {"tensors": X}, [], **attributes),))
    assert (found["sent"], found["ranks"], found["nodes"]) == (X.nbytes, 2, nodes)


def test_a_rank_that_sends_nothing_tells_nothing_of_a_network_nor_does_an_unknown_group():
    for name in ("c10d::recv_", "c10d::allreduce_"):
        found = facts_of((op(name, {"tensors": X}, [X], group_size=1),), A100)
        assert found is not None
        assert found.key == name
    assert facts_of((op("c10d::allreduce_", {"tensors": X}, [X]),), A100) is None
