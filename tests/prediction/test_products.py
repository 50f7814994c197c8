"""Products by the hundred thousand have the facts that each has on its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import op, spec
from gemm_table import A100, gemm
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.devices import get
from rooflight.devices.spec import DeviceSpec, MemoryLevel, Roofs
from rooflight.prediction.work.facts import FACTS, WorkKind, facts_of, product_facts
from rooflight.records.signature import OpSignature

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


def test_the_largest_sizes_there_are_have_finite_facts():
    most = np.array([2.0**53 - 1])
    assert np.isfinite(product_facts(most, most, most, "fp16", A100, batch=most)).all()


def test_arrays_of_different_lengths_are_refused():
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
