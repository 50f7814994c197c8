"""Costs, bounds, facts and predictions of many shapes at once are those of each alone, for every operator."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import isnan, isqrt
from typing import Any

import numpy as np
import pytest
from gemm_table import A100
from hypothesis import given, settings
from hypothesis import strategies as st
from some_presets import some
from test_facts import CPU
from test_lint import table_of

from rooflight.costs.cost import OpCost
from rooflight.costs.lanes import array_of
from rooflight.costs.operators import registry
from rooflight.costs.operators.operator import Operator, Work, accepted, over_shapes
from rooflight.costs.operators.signatures import call, tensor
from rooflight.costs.registry import cost_of, formula
from rooflight.devices import get
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.prediction.lint.findings import row_bounds
from rooflight.prediction.predictor import Predictor
from rooflight.prediction.work.facts import Facts, facts_of, facts_of_shapes
from rooflight.records.signature import OpSignature
from rooflight.roofline.bound import bound_of

SMALL = {"encoders": 3, "tensors": 5, "parts": 6, "nodes": 3, "gpus_per_node": 4, "mp": 4, "top_k": 3}
SIZES = (
    st.integers(1, 300) | st.integers(1, 64).map(lambda size: size * 64) | st.sampled_from([1, 8, 64, 4096, 1 << 21])
)
DEVICES = st.sampled_from([A100, get("H100-SXM5-80GB"), get("P4"), CPU])
DTYPES = st.sampled_from(["float16", "float32", "float64"])
NAMES = registry.names()


def size_of(operator: Operator, name: str) -> st.SearchStrategy[int]:
    """Values of a parameter, some of which no operator takes."""
    if name in operator.flags:
        return st.integers(0, 1)
    if name in SMALL:
        return st.integers(1, SMALL[name])
    return st.sampled_from([0, 0, 1, 2]) | SIZES if operator.defaults.get(name) == 0 else SIZES


@st.composite
def many_shapes(draw: Any, operator: Operator) -> dict[str, np.ndarray[Any, np.dtype[np.int64]]]:
    """So many shapes that they run over lanes: a few of hypothesis's choice, and others that mix their sizes."""
    few = [[draw(size_of(operator, name)) for name in operator.parameters] for _ in range(draw(st.integers(1, 6)))]
    rng = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    mixed = rng.choice(np.array(few, dtype=np.int64), size=24)
    mixed = np.stack([rng.permutation(column) for column in mixed.T], axis=1)
    rows = np.concatenate([np.array(few, dtype=np.int64), mixed])
    return dict(zip(operator.parameters, rows.T, strict=True))


def shape_of(columns: Any, row: int) -> dict[str, int]:
    return {name: int(values[row]) for name, values in columns.items()}


def taken_of(operator: Operator, columns: Any) -> dict[str, Any]:
    taken = accepted(operator, columns)
    count = len(next(iter(columns.values())))
    assert taken.tolist() == [row for row in range(count) if operator.refusal(shape_of(columns, row)) is None]
    return {name: values[taken] for name, values in columns.items()}


def figures(ops: Any, device: DeviceSpec) -> list[Any]:
    """Every number of the costs and bounds of ops, and what goes with them."""
    found: list[Any] = []
    for op in ops:
        cost = cost_of(op)
        if not isinstance(cost, OpCost):
            found.append(cost.reason)
            continue
        bound = bound_of(cost, device)
        found += [cost.matrix_flops, cost.vector_flops, cost.bytes_read, cost.bytes_written, cost.bytes_sent]
        found += [bound.compute_s, bound.memory_s, bound.network_s, bound.time_s, bound.cache_resident]
        found.append((op.name, cost.matrix_dtype, cost.vector_dtype, cost.upper, cost.note, bound.unknown))
    return found


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=4)
@given(st.data())
def test_costs_bounds_and_facts_are_those_of_each_shape(name: str, data: Any):
    operator, device, dtype = registry.find(name), data.draw(DEVICES), data.draw(DTYPES)
    columns = taken_of(operator, data.draw(many_shapes(operator)))
    for direction in operator.directions:

        def of(_: Any, ops: tuple[OpSignature, ...]) -> list[Any]:
            return figures(ops, device)

        seen = 0
        for rows, found in over_shapes(operator, columns, dtype, direction, of):
            for place, row in enumerate(rows.tolist()):
                expected = figures(operator.ops(shape_of(columns, row), dtype, direction), device)
                assert len(found) == len(expected)
                for one, other in zip(found, expected, strict=True):
                    answers = one if isinstance(one, str | tuple) else array_of(one, len(rows))[place]
                    assert answers == other
                seen += 1
        assert seen == len(next(iter(columns.values())))
        check_facts(operator, columns, dtype, direction, device)


@pytest.mark.parametrize("name", NAMES)
def test_few_runs_serve_many_shapes(name: str):
    operator, rng, count = registry.find(name), np.random.default_rng(0), 2000
    columns = {each: 8 * rng.integers(1, 500, count) for each in operator.parameters}
    columns |= {each: rng.integers(1, SMALL[each] + 1, count) for each in SMALL if each in columns}
    columns |= {each: rng.integers(0, 2, count) for each in operator.flags}
    columns |= {each: np.full(count, 8) for each in ("groups", "kv_heads", "q", "kv") if each in columns}
    columns = taken_of(operator, columns)
    whole = len(next(iter(columns.values())))
    for direction in operator.directions:
        runs = len(list(over_shapes(operator, columns, "float16", direction, lambda _, ops: facts_of(ops, A100))))
        assert runs <= max(1, whole // 30)


def check_facts(operator: Operator, columns: Any, dtype: str, direction: str, device: DeviceSpec) -> None:
    facts: dict[int, Facts] = {}
    for each in facts_of_shapes(operator, columns, dtype, direction, device):
        for row, values in zip(each.rows.tolist(), each.values.tolist(), strict=True):
            assert row not in facts
            facts[row] = Facts(key=each.key, values=tuple(values))
    for row in range(len(next(iter(columns.values())))):
        assert facts.get(row) == facts_of(operator.ops(shape_of(columns, row), dtype, direction), device)


@pytest.mark.parametrize("name", some(NAMES, ("gemm", "linear1", "conv2d", "sdpa", "add", "adamw")))
@settings(deadline=None, max_examples=1)
@given(st.data())
def test_predictions_are_those_of_each_shape(name: str, data: Any):
    operator, device = registry.find(name), data.draw(st.sampled_from(["A100-SXM4-80GB", "MI300X"]))
    columns = data.draw(many_shapes(operator))
    found = shipped().predict_shapes(name, columns, "fp16", device)
    assert tuple(found) == operator.directions
    count = len(next(iter(columns.values())))
    for row in range(0, count, -(-count // 5)):  # 5 of them: one at a time takes 50 ms where sizes are interpolated
        shape = shape_of(columns, row)
        if operator.refusal(shape) is not None:
            expected = None
        else:
            expected = shipped().predict_many([operator.ops(shape, "float16", each) for each in found], device)
        for place, batch in enumerate(found.values()):
            alone = expected[place] if expected else None
            answers = batch.time_s[row], batch.low_s[row], batch.high_s[row], batch.bound_s[row]
            if alone is None:
                assert all(map(isnan, answers))
                assert batch.extrapolated[row]
            else:
                assert answers == pytest.approx((alone.time_s, alone.low_s, alone.high_s, alone.bound_s), rel=1e-12)
                assert batch.extrapolated[row] == alone.extrapolated


@cache
def shipped() -> Predictor:
    return Predictor()


@pytest.mark.parametrize("name", ["linear1", "conv2d", "all_gather", "fillmask", "adamw"])
@settings(deadline=None, max_examples=4)
@given(st.data())
def test_bounds_of_a_table_are_those_of_each_row(name: str, data: Any):
    operator, device = registry.find(name), data.draw(DEVICES)
    columns = data.draw(many_shapes(operator))
    count = len(next(iter(columns.values())))
    table = table_of(name, np.stack(list(columns.values()), axis=1), device=device)
    whole = row_bounds(table)
    for row in range(count):
        alone = row_bounds(table.subset(np.array([row])))
        for figure in ("bound_s", "floor_s", "operand_bytes"):
            assert getattr(whole, figure)[row].tolist() == getattr(alone, figure)[0].tolist()
        for number in range(len(operator.directions)):
            answers = [each.values[each.rows == row].tolist() for each in whole.facts[number] if row in each.rows]
            assert answers == [each.values.tolist() for each in alone.facts[number]]


def test_one_size_serves_all_shapes_and_defaults_are_filled_in():
    found = Predictor.empty().predict_shapes("gemm", {"m": [64, 128], "n": 256, "k": 64}, "fp16", "A100-SXM4-80GB")
    expected = Predictor.empty().predict_shape("gemm", {"m": 128, "n": 256, "k": 64}, "fp16", "A100-SXM4-80GB")
    assert found["step"].time_s[1] == expected["step"].time_s
    none = Predictor.empty().predict_shapes("copy", {"elements": np.array([], dtype=int)}, "fp16", A100)
    assert len(none["step"].time_s) == 0


def test_shapes_that_cannot_be_have_no_numbers():
    found = Predictor.empty().predict_shapes("linear1", {"mp": [1, 3], "b": 1, "l": 8, "dim": 64}, "fp16", A100)
    for batch in found.values():
        assert np.isnan(batch.time_s).tolist() == [False, True]


@pytest.mark.parametrize(
    ("name", "shapes", "dtype", "said"),
    [
        ("gem", {"m": [1]}, "fp16", "unknown operator"),
        ("gemm", {"m": [1], "n": [1]}, "fp16", "gemm needs k"),
        ("gemm", {"m": [1], "n": [1], "k": [1], "o": [1]}, "fp16", "gemm has no parameter o"),
        ("gemm", {"m": [1.5], "n": [1], "k": [1]}, "fp16", "gemm: m must be integers"),
        ("gemm", {"m": [1, 2], "n": [1, 2, 3], "k": [1]}, "fp16", "shape mismatch"),
        ("gemm", {"m": [1], "n": [1], "k": [1]}, "fp17", "unknown dtype"),
        ("gemm", {"m": [1, 2], "n": [1, 2, 3], "k": 4}, "bf16", "m 2, n 3: give each parameter a list with a value"),
        ("gemm", {"m": [[1], [2]], "n": 3, "k": 4}, "bf16", "m 2x1: give"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(name: str, shapes: Any, dtype: str, said: str):
    with pytest.raises(ValueError, match=said):
        Predictor.empty().predict_shapes(name, shapes, dtype, A100)


def test_tf32_is_float32_at_its_own_peak_where_one_is_listed():
    """19.5 TFLOP/s of vectors, 156 of TF32: for 2 x 4096^3 FLOPs 0.88 ms, not 7.0; 3 x 64 MiB take 0.1 ms."""
    shapes = {"m": [4096], "n": [4096], "k": [4096]}
    (tf32,), (fp32,) = (
        Predictor.empty().predict_shapes("gemm", shapes, dtype, A100).values() for dtype in ("tf32", "fp32")
    )
    assert tf32.bound_s[0] == pytest.approx(2 * 4096**3 / 156e12)
    assert fp32.bound_s[0] == pytest.approx(2 * 4096**3 / 19.5e12)
    (one,) = Predictor.empty().predict_shape("gemm", [4096, 4096, 4096], "tf32", A100).values()
    assert one.bound_s == pytest.approx(tf32.bound_s[0])


def test_tf32_is_refused_where_no_peak_of_it_is_listed():
    with pytest.raises(ValueError, match="V100-PCIE-32GB has no known tf32 matrix peak: it has one for fp64, fp32"):
        Predictor.empty().predict_shapes("gemm", {"m": [1], "n": [1], "k": [1]}, "tf32", get("V100-PCIE-32GB"))


@pytest.mark.usefixtures("restored_formulas")
def test_formulas_that_lanes_cannot_run_cost_each_shape_alone():
    tables = {1: 2, 7: 5}

    @formula("mylib::odd")
    def odd(op: OpSignature) -> OpCost:
        size = op.inputs[0].shape[0]
        if type(size) is not int:
            raise TypeError("an int is needed")  # as a library in C may say
        return OpCost(vector_flops=int(size**0.5) + tables.get(size, 0))

    @formula("mylib::root")
    def root(op: OpSignature) -> OpCost:
        size = op.inputs[0].shape[0]
        return OpCost(vector_flops=isqrt(size) + tables.get(size, 0) + len(str(size)))

    copy = registry.find("copy")
    for name in ("mylib::odd", "mylib::root"):

        def work(shape: Any, dtype: str, name: str = name) -> Work:
            return Work(forward=(call(name, {"self": tensor(dtype, shape["elements"])}),))

        operator = replace(copy, name="odd", work=work)
        columns = {"elements": np.arange(1, 500)}
        flops = np.zeros(499)
        for rows, cost in over_shapes(operator, columns, "float16", "step", lambda _, ops: cost_of(ops[0])):
            assert isinstance(cost, OpCost)
            flops[rows] = array_of(cost.vector_flops, len(rows))
        for size in range(1, 500):
            (op,) = operator.ops({"elements": size}, "float16", "step")
            cost = cost_of(op)
            assert isinstance(cost, OpCost)
            assert flops[size - 1] == cost.vector_flops


def test_sizes_beyond_integers_are_predicted_without_a_warning():
    shape = {"mp": 1, "b": [1 << 62], "l": 1 << 62, "dim": 1 << 62}  # b * l fits no integer
    assert Predictor().predict_shapes("linear1", shape, "fp16", A100)["fwd"].time_s > 0
