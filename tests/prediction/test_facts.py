"""Facts of work: of products, convolutions and all operators, and at which precisions."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import op, spec
from gemm_table import A100, gemm
from hypothesis import given, settings
from hypothesis import strategies as st

import rooflight as rl
from rooflight.costs.operators import registry
from rooflight.costs.operators import registry as user_file
from rooflight.costs.operators.registry import operators_of
from rooflight.devices import get
from rooflight.hardware.devices.spec import DeviceSpec, MemoryLevel, Roofs
from rooflight.hardware.devices.what_if import WhatIf, without_precision
from rooflight.prediction.model.files import read_manifest
from rooflight.prediction.predictor import SHIPPED, SUFFIX, Predictor, file_name
from rooflight.prediction.work.facts import (
    CONVOLUTION_BACKWARD_KEY,
    CONVOLUTION_KEY,
    FACTS,
    OTHER_REDUCTIONS_KEY,
    OTHERS_KEY,
    PRODUCT_KEY,
    WorkKind,
    facts_of,
    is_plain,
    key_of_others,
    kind_of,
    product_facts,
)
from rooflight.prediction.work.features import features_of, names_of
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec
from rooflight.sampling.sweeps import full_grid

CACHES = (
    MemoryLevel(name="L1", capacity_bytes=32 << 10, bytes_per_s=400e9),
    MemoryLevel(name="L2", capacity_bytes=1 << 20, bytes_per_s=200e9),
    MemoryLevel(name="L3", capacity_bytes=32 << 20),  # as on a datasheet: no bandwidth
    MemoryLevel(name="DRAM", bytes_per_s=20e9),
)
ROOFS = Roofs(source="test", vector_flops_per_s={"float32": 1e12, "float64": 5e11}, memory=CACHES)
CPU = DeviceSpec(name="CPU", vendor="", architecture="", kind="cpu", calibrated=ROOFS)
DEVICES = (A100, get("H100-SXM5-80GB"), get("MI300X"), get("V100-SXM2-32GB"), CPU)


def product(b: int, m: int, n: int, k: int, dtype: str) -> OpSignature:
    if b == 1:
        return gemm(m, n, k, dtype)
    inputs = {"self": spec((b, m, k), dtype), "mat2": spec((b, k, n), dtype)}
    return op("aten::bmm", inputs, [spec((b, m, n), dtype)])


sizes = st.integers(1, 20_000) | st.sampled_from([1, 2, 64, 127, 128, 4096, 1 << 20])
shapes = st.lists(st.tuples(st.integers(1, 300), sizes, sizes, sizes), min_size=1, max_size=5)
dtypes = st.sampled_from(["float64", "float32", "float16", "bfloat16", "int8", "complex64", "float8_e4m3fn"])


@settings(deadline=None, max_examples=60)
@given(shapes, st.sampled_from(DEVICES), dtypes)
def test_facts_of_many_are_those_of_each(wanted: list[tuple[int, int, int, int]], device: DeviceSpec, dtype: str):
    b, m, n, k = np.array(wanted, dtype=np.float64).T
    if device.matrix_peak(dtype) is None:
        with pytest.raises(ValueError, match=f"{device.name} has no known"):
            product_facts(m, n, k, dtype, device, batch=b)
        return
    found = product_facts(m, n, k, dtype, device, batch=b)
    assert found.shape == (len(wanted), len(FACTS[WorkKind.PRODUCT]))
    for row, shape in zip(found, wanted, strict=True):
        expected = facts_of((product(*shape, dtype),), device)
        assert expected is not None
        assert row.tolist() == pytest.approx(list(expected.values), rel=1e-12)


def test_one_batch_serves_all_and_integers_are_numbers():
    sizes = np.array([64, 128])
    one = product_facts(sizes, sizes, np.array([32]), "fp16", A100, batch=3)
    other = product_facts(
        sizes.astype(float), sizes.astype(float), np.full(2, 32.0), "torch.float16", A100, batch=np.full(2, 3.0)
    )
    assert np.array_equal(one, other)
    assert product_facts(np.array([]), np.array([]), np.array([]), "fp16", A100).shape == (0, one.shape[1])


@pytest.mark.parametrize("bad", [0, -1, 0.5, 1.0000001, np.nan, np.inf, -np.inf, 2.0**53, 1e300])
@pytest.mark.parametrize("place", range(4))
def test_what_is_no_size_is_refused(bad: float, place: int):
    wanted = [np.array([2.0, 4.0]) for _ in range(4)]
    wanted[place] = np.array([4.0, bad])
    m, n, k, batch = wanted
    with pytest.raises(ValueError, match="sizes of products must be positive integers"):
        product_facts(m, n, k, "fp16", A100, batch=batch)


def test_the_largest_sizes_there_are_have_finite_facts_and_arrays_of_different_lengths_are_refused():
    most = np.array([2.0**53 - 1])
    assert np.isfinite(product_facts(most, most, most, "fp16", A100, batch=most)).all()
    with pytest.raises(ValueError, match="shape"):
        product_facts(np.ones(2), np.ones(3), np.ones(2), "fp16", A100)


@pytest.mark.parametrize(
    ("dtype", "device", "said"),
    [
        ("fp17", A100, "unknown dtype"),
        ("int64", A100, "no known int64 matrix peak"),
        ("bool", A100, "no known bool matrix peak"),
        ("fp16", CPU, "CPU has no known float16 matrix peak"),
        ("fp32", replace(CPU, calibrated=replace(ROOFS, memory=())), "memory bandwidth"),
        ("fp32", DeviceSpec(name="blank", vendor="", architecture="", kind="other"), "blank has no known"),
    ],
)
def test_what_nothing_bounds_is_refused(dtype: str, device: DeviceSpec, said: str):
    with pytest.raises(ValueError, match=said):
        product_facts(np.ones(1), np.ones(1), np.ones(1), dtype, device)


H100 = get("H100-SXM5-80GB")


def convolution(x, weight, out, *, name="aten::convolution", **settings) -> OpSignature:
    given = {"stride": (1, 1), "dilation": (1, 1), "groups": 1, "transposed": False} | settings
    return op(name, {"input": spec(x), "weight": spec(weight)}, [spec(out)], **given)


PLAIN = convolution((8, 16, 32, 32), (64, 16, 3, 3), (8, 64, 30, 30))
DEPTHWISE = convolution((8, 16, 32, 32), (16, 1, 3, 5), (8, 16, 30, 28), groups=16)
TRANSPOSED = convolution(
    (8, 16, 10, 10, 10), (16, 32, 3, 3, 3), (8, 32, 21, 21, 21), transposed=True, stride=(2, 2, 2), dilation=(1, 1, 1)
)


def facts(work: OpSignature) -> dict[str, float]:
    found = facts_of([work], H100)
    assert found is not None
    assert kind_of(found.key) is WorkKind.CONVOLUTION
    return dict(zip(FACTS[WorkKind.CONVOLUTION], found.values, strict=True))


def test_sizes_are_those_of_the_product_that_kernels_make_of_it():
    plain = facts(PLAIN)
    # 8 x 30 x 30 positions, 64 channels out, 16 in under 3 x 3 taps
    assert [plain[name] for name in ("positions", "out", "in", "taps", "groups")] == [7200, 64, 16, 9, 1]
    assert (plain["transposed"], plain["dims"], plain["stride"], plain["dilation"]) == (0, 2, 1, 1)
    depthwise = facts(DEPTHWISE)
    assert [depthwise[name] for name in ("positions", "out", "in", "taps", "groups")] == [6720, 1, 1, 15, 16]
    transposed = facts(TRANSPOSED)
    assert [transposed[name] for name in ("positions", "out", "in", "taps")] == [8 * 21**3, 32, 16, 27]
    assert (transposed["transposed"], transposed["dims"], transposed["stride"]) == (1, 3, 8)


def test_the_layout_of_images_is_a_fact():
    nhwc = op(
        "aten::convolution",
        {"input": TensorSpec((8, 16, 32, 32), "float32", (16384, 1, 512, 16)), "weight": spec((64, 16, 3, 3))},
        [TensorSpec((8, 64, 30, 30), "float32", (57600, 1, 1920, 64))],
        stride=(1, 1), dilation=(1, 1), groups=1, transposed=False,
    )  # fmt: skip
    assert [facts(each)["channels last"] for each in (PLAIN, nhwc)] == [0, 1]


@pytest.mark.parametrize(
    ("given", "out", "strided", "reordered"),
    [
        (None, None, 0, 0),
        ((4096, 1, 512, 16), (4096, 1, 512, 16), 1, 0),  # channels last, and so it stays
        ((4096, 1, 512, 16), None, 1, 1),
        ((256, 2048, 32, 1), None, 0, 0.5),  # whole rows change places
        ((0, 256, 32, 1), None, 0, 0),  # repeated
    ],
)
def test_rows_know_whether_their_entries_lie_apart_and_in_another_order(given, out, strided, reordered):
    shape = (8, 16, 8, 32)
    clone = op("aten::clone", {"self": TensorSpec(shape, "float32", given)}, [TensorSpec(shape, "float32", out)])
    found = facts_of([clone], H100)
    values = dict(zip(FACTS[WorkKind.ROWS], found.values, strict=True))
    assert (values["strided"], values["reordered"]) == (strided, reordered)


@pytest.mark.parametrize(
    ("m", "n", "k", "log2_bytes"),
    [(64, 64, 64, 4), (64, 50257, 768, 1), (63, 64, 64, 4), (64, 30522, 64, 2), (8, 8, 7, 1)],
)
def test_products_know_to_how_many_bytes_their_rows_are_aligned(m, n, k, log2_bytes):
    values = product_facts(*(np.array([each]) for each in (m, n, k)), "bf16", H100)
    found = dict(zip(names_of(PRODUCT_KEY), features_of(PRODUCT_KEY, values, H100)[0], strict=True))
    assert found["align bytes"] == pytest.approx(log2_bytes)


def test_what_is_stuffed_between_strides_is_not_multiplied():
    names = names_of(CONVOLUTION_KEY)
    found = facts_of([TRANSPOSED], H100)
    values = dict(zip(names, features_of(CONVOLUTION_KEY, np.array([found.values]), H100)[0], strict=True))
    # 16 x 27 taps on 8 x 1,000 inputs make 8 x 9,261 results: 46.6 multiply-adds each
    assert np.exp(values["log depth"]) == pytest.approx(16 * 27 * 1000 / 9261)
    # 64 channels of a block for 32, 64 deep for 46.6
    assert np.exp(values["log waste"]) == pytest.approx(64 / 32 * 64 / (16 * 27 * 1000 / 9261))


def test_all_libraries_names_share_a_key_and_backward_has_its_own():
    named = convolution((8, 16, 32, 32), (64, 16, 3, 3), (8, 64, 30, 30), name="aten::cudnn_convolution")
    assert facts_of([named], H100).key == CONVOLUTION_KEY
    operands = {"input": spec((8, 16, 32, 32)), "weight": spec((64, 16, 3, 3))}
    settings = {"output_mask": (True, True, False), "groups": 1, "transposed": False}
    given = {"grad_output": spec((8, 64, 30, 30)), **operands}
    backward = op("aten::convolution_backward", given, [*operands.values()], **settings)
    found = facts_of([backward], H100)
    assert found.key == CONVOLUTION_BACKWARD_KEY
    values = dict(zip(FACTS[WorkKind.CONVOLUTION], found.values, strict=True))
    assert (values["positions"], values["out"]) == (7200, 64)


def test_without_its_operands_it_is_no_convolution():
    odd = op("aten::convolution", [spec((8, 16, 32, 32)), spec((64, 16, 3, 3))], [spec((8, 64, 30, 30))])
    found = facts_of([odd], H100)
    assert found is None or kind_of(found.key) is WorkKind.ROWS


FEWEST_OF_A_TABLE = 100
"""Rows that sessions and traces alone do not have of any kind that no operator makes."""
OF_RANDOM_OPS = ("H100-SXM5-80GB", "H200-SXM-141GB")
"""Devices on which steps of random ops were measured."""
SHAPES = 7  # of each operator's grid, from its small end to its large one
OPERATOR = """
from dataclasses import replace

from rooflight.costs.operators.registry import find, register

register(replace(find("swiglu"), name="my_op"))
"""


def keys_of(operator) -> set[str]:
    grid = full_grid(operator)
    found = set()
    for number in range(SHAPES):
        shape = operator.shape(grid[(grid.size - 1) * number // (SHAPES - 1)])
        if operator.refusal(shape) is None:
            work = operator.work(shape, "float16")
            facts = [facts_of(ops, A100) for ops in (work.forward, work.backward) if ops]
            found |= {each.key for each in facts if each is not None}
    return found


def test_operators_still_make_every_key_of_the_models_that_come_with_rooflight():
    """Were the ops of an operator called otherwise, its model would lie there unused, and other ops would answer."""
    manifest = read_manifest(SHIPPED)
    assert manifest is not None
    wanted = {entry.key for entry in manifest.models.values() if kind_of(entry.key) is not WorkKind.NETWORK}
    others = {
        key: sum(expert.rows for expert in model.experts if expert.device not in OF_RANDOM_OPS)
        for key, model in Predictor().models.items()
    }
    of_sessions = {key for key, rows in others.items() if rows < FEWEST_OF_A_TABLE}
    made = set().union(*(keys_of(operator) for operator in registry.every() if not operator.ranks))
    assert wanted - of_sessions - {OTHERS_KEY, OTHER_REDUCTIONS_KEY} <= made
    assert len(wanted - of_sessions) > 20


def test_a_models_file_is_named_by_its_key_alone():
    manifest = read_manifest(SHIPPED)
    assert manifest is not None
    assert {name: entry.key for name, entry in manifest.models.items()} == {
        f"{file_name(entry.key)}{SUFFIX}": entry.key for entry in manifest.models.values()
    }
    assert file_name("aten::add") == "add-1efe4e35"


@pytest.fixture
def alone(monkeypatch):
    """A registry that forgets what a file registered."""
    registry.find("swiglu")  # loads those that come with Rooflight
    shipped = dict(registry._operators)

    monkeypatch.setattr(sys, "path", list(sys.path))

    def forget(path: Path) -> None:
        monkeypatch.delitem(sys.modules, f"_rooflight_user_{path.resolve()}", raising=False)
        monkeypatch.setattr(registry, "_operators", dict(shipped))
        monkeypatch.setattr(user_file, "_registered", {})

    return forget


def test_a_key_stays_when_the_file_of_the_operator_is_edited_renamed_or_moved(alone, tmp_path: Path):
    found = []
    for place, text in (
        ("one.py", OPERATOR),
        ("one.py", f'"""Edited."""\nimport math  # unused\n{OPERATOR}\n# and a comment'),
        ("deep/er/other.py", OPERATOR),
        ("deep/er/other.py", OPERATOR.replace("my_op", "another_name")),
    ):
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        alone(path)
        (operator,) = operators_of(str(path))
        found.append(keys_of(operator))
    assert found[0]
    assert all(each == found[0] for each in found)


GEMM = {"m": 4096, "n": 2048, "k": 1024}
ROWS = {"rows": 4096, "width": 2048}


@pytest.fixture(scope="module")
def predictor() -> rl.Predictor:
    return rl.Predictor()


@pytest.mark.parametrize(
    ("operator", "shape", "supposed", "dtype", "same"),
    [
        ("gemm", GEMM, "tf32", "fp32", "tf32"),  # float32 products in TF32 are what torch runs where it is allowed
        ("gemm", GEMM, "tf32", "bf16", "bf16"),  # no fewer bits
        ("gemm", GEMM, "fp16", "bf16", "bf16"),  # as many
        ("softmax_rows", ROWS, "bf16", "fp32", "fp32"),  # no products
        ("linear", {"rows": 64, "inputs": 512, "outputs": 512}, "tf32", "fp32", "tf32"),
    ],
)
def test_one_piece_of_work_has_one_time(predictor, operator, shape, supposed, dtype, same) -> None:
    lowered = WhatIf(precision=supposed).of(A100)
    asked = predictor.predict_shape(operator, shape, dtype, lowered)
    assert asked == predictor.predict_shape(operator, shape, same, A100)
    batches = predictor.predict_shapes(operator, shape, dtype, lowered)
    assert {direction: float(batch.time_s[0]) for direction, batch in batches.items()} == {
        direction: pytest.approx(estimate.time_s, rel=1e-12) for direction, estimate in asked.items()
    }


def test_products_of_many_shapes_too_and_those_of_fewer_bits_than_their_tensors_nobody_measured(predictor) -> None:
    sizes = [np.array([64.0, 4096.0])] * 3
    lowered = predictor.predict_products(*sizes, "fp32", WhatIf(precision="tf32").of(A100))
    assert lowered.time_s.tolist() == predictor.predict_products(*sizes, "tf32", A100).time_s.tolist()
    asked = predictor.predict_shape("gemm", GEMM, "fp32", WhatIf(precision="bf16").of(A100))["step"]
    assert asked.extrapolated
    assert asked.time_s < predictor.predict_shape("gemm", GEMM, "fp32", A100)["step"].time_s


def test_a_program_changes_only_where_it_has_products(predictor) -> None:
    x, weight = torch.randn(512, 512), torch.randn(512, 512)
    with rl.record() as recording:
        (x @ weight).softmax(-1)
    own, lowered = (
        rl.analyze(recording.session, device, predictor=predictor).totals.predicted.time_s
        for device in (A100, WhatIf(precision="tf32").of(A100))
    )
    product = {device: predictor.predict_shape("gemm", {"m": 512, "n": 512, "k": 512}, device, A100)["step"].time_s
               for device in ("fp32", "tf32")}  # fmt: skip
    assert own - lowered == pytest.approx(product["fp32"] - product["tf32"], rel=1e-9)


@pytest.mark.parametrize("what_if", [WhatIf(precision="tf32"), WhatIf(precision="tf32", clock_hz=1e9)])
def test_without_the_precision_it_is_the_device_again(what_if) -> None:
    assert without_precision(what_if.of(A100)) == WhatIf(clock_hz=what_if.clock_hz).of(A100)


def batch_norm(name: str = "native_batch_norm", **attributes: bool) -> OpSignature:
    x = spec((16, 64, 28, 28))
    return op(f"aten::{name}", {"input": x}, [x], **attributes)


@pytest.mark.parametrize("name", ["native_batch_norm", "native_batch_norm_backward", "cudnn_batch_norm_backward"])
def test_rows_of_a_batch_norm_are_channels_forward_and_backward(name):
    found = facts_of([batch_norm(name, training=True)], H100)
    values = dict(zip(FACTS[WorkKind.ROWS], found.values, strict=True))
    assert (found.key, values["rows"], values["width"]) == (f"aten::{name}", 64, 16 * 28 * 28)


def test_a_batch_norm_with_known_means_is_other_work_and_reduces_nothing():
    found = facts_of([batch_norm(training=False)], H100)
    assert found.key != "aten::native_batch_norm"
    assert is_plain(found.key, np.array([found.values]))
    assert key_of_others(found.key) == OTHERS_KEY
