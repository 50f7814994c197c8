"""What-if roofs: products in fewer bits, a locked clock."""

from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.costs.cost import OpCost
from rooflight.devices import DeviceSpec, MemoryLevel, Roofs, get, names
from rooflight.hardware.devices.spec import THREE_TF32
from rooflight.hardware.devices.what_if import WhatIf, parse_clock
from rooflight.records.dtypes import FLOAT_BITS
from rooflight.roofline.bound import bound_of

A100, H100, T4 = get("A100-SXM4-80GB"), get("H100-SXM5-80GB"), get("T4")
PRODUCT = OpCost(matrix_flops=10**12, matrix_dtype="float32", bytes_read=10**6)


def in_precision(device, name) -> DeviceSpec:
    return WhatIf(precision=name).of(device)


def at_clock(device, text) -> DeviceSpec:
    return WhatIf(clock_hz=parse_clock(text)).of(device)


def test_float32_products_are_bounded_at_the_peak_of_fewer_bits():
    assert bound_of(PRODUCT, A100).compute_s == pytest.approx(1e12 / 19.5e12)
    assert bound_of(PRODUCT, in_precision(A100, "tf32")).compute_s == pytest.approx(1e12 / 156e12)
    assert bound_of(PRODUCT, in_precision(A100, "bf16")).compute_s == pytest.approx(1e12 / 312e12)
    assert bound_of(PRODUCT, in_precision(H100, "fp8")).compute_s == pytest.approx(1e12 / 1978.9e12)


def test_attention_in_three_tf32_products_is_float32_too():
    device = in_precision(A100, "bf16")
    assert bound_of(PRODUCT, device, THREE_TF32).compute_s == pytest.approx(1e12 / 312e12)


def test_bytes_and_vector_work_stay():
    cost = OpCost(vector_flops=10**9, vector_dtype="float32", bytes_read=10**6, bytes_written=10**6)
    assert bound_of(cost, in_precision(A100, "bf16")) == bound_of(cost, A100)


def test_work_in_as_few_bits_stays_and_so_do_integers():
    device = in_precision(H100, "bf16")
    for dtype in ("bfloat16", "float16", "float8_e4m3fn", "int8"):
        cost = replace(PRODUCT, matrix_dtype=dtype)
        assert bound_of(cost, device) == bound_of(cost, H100)


def test_a_peak_that_is_no_higher_is_not_taken():
    slow = Roofs(source="by hand", matrix_flops_per_s={"float32": 20.0, "bfloat16": 10.0})
    device = in_precision(DeviceSpec(name="odd", vendor="", architecture="", kind="cpu", calibrated=slow), "bf16")
    assert device.computed_as("float32") == "float32"


def test_the_clock_scales_arithmetic_from_the_clock_of_each_peak():
    half = at_clock(A100, "705MHz")  # half of 1410
    assert half.matrix_peak("bf16") == pytest.approx(156e12)
    assert half.vector_peak("fp32") == pytest.approx(9.75e12)
    # Hopper's matrix peaks are quoted at 1830 MHz, its vector peaks at 1980
    fast = at_clock(H100, "1.98GHz")
    assert fast.matrix_peak("bf16") == pytest.approx(989.4e12 * 1980 / 1830)
    assert fast.vector_peak("fp32") == pytest.approx(66.9e12)
    assert fast.matrix_clock_headroom == 1


def test_a_locked_clock_leaves_b200_no_less_than_its_units_do():
    # 148 SMs; 8192 BF16 FLOPs a clock and SM, twice that at FP8, half at TF32; 128 FMA = 256 FLOPs on the vector units
    slow = at_clock(get("B200-SXM"), "1.5GHz")
    for precision, flops in (("bf16", 8192), ("fp16", 8192), ("fp8", 16384), ("fp4", 32768), ("tf32", 4096)):
        units = 148 * flops * 1.5e9
        assert units <= slow.matrix_peak(precision) <= 1.03 * units, precision
    assert slow.vector_peak("fp32") >= 148 * 256 * 1.5e9
    assert get("B200-SXM").matrix_clock_headroom == 1965 / 1814
    with pytest.raises(ValueError, match=r"2 GHz is above the highest clock of B200-SXM, 1\.965 GHz"):
        at_clock(get("B200-SXM"), "2GHz")


def test_the_clock_leaves_memory_links_and_caches():
    slow = at_clock(A100, "500MHz")
    assert slow.memory == A100.memory
    assert slow.links == A100.links


def test_a_clock_leaves_a_calibration_out():
    measured = Roofs(source="measured", matrix_flops_per_s={"bfloat16": 400e12})
    device = at_clock(A100.with_calibration(measured), "1.41GHz")
    assert device.calibrated is None
    assert device.matrix_peak("bf16") == pytest.approx(312e12)
    assert device.roofs_used == "datasheet, arithmetic at 1.41 GHz"


def test_names_say_what_is_supposed():
    device = WhatIf(precision="torch.bfloat16", clock_hz=1.1e9).of(A100)
    assert device.name == "A100-SXM4-80GB at 1.1 GHz in bf16"
    assert device.part_name == A100.part_name == "A100-SXM4-80GB"
    assert WhatIf().of(A100) is A100


@pytest.mark.parametrize(
    ("text", "hertz"),
    [
        *[(text, 1.5e9) for text in ("1.5GHz", "1.5e9", "1.5E+9", "1500000kHz", "1500000000 Hz")],
        *[("1410MHz", 1.41e9), ("1410 mhz", 1.41e9), (".9GHz", 9e8)],
    ],
)
def test_clocks_are_read_with_or_without_a_unit(text, hertz):
    assert parse_clock(text) == pytest.approx(hertz)


@pytest.mark.parametrize(
    "text", ["", "fast", "1.5", "1410", "0", "-1GHz", "nan", "inf", "1e999", "1.5GHz2", "1,5GHz", "1.5 THz", "1_0GHz"]
)
def test_what_is_no_clock_is_refused(text):
    with pytest.raises(ValueError, match=r"give one such as 1\.5GHz"):
        parse_clock(text)


@given(st.text(max_size=12))
def test_any_text_is_a_clock_or_a_value_error(text):
    try:
        clock_hz = parse_clock(text)
    except ValueError:
        return
    assert 1e6 <= clock_hz <= 1e11


@pytest.mark.parametrize("name", ["int8", "fp64", "float64", "int64", "quux", "", "bool"])
def test_what_products_cannot_use_instead_is_refused(name):
    with pytest.raises(ValueError, match="give one of fp32, tf32, fp16, fp16acc, bf16, fp8, fp4"):
        WhatIf(precision=name)


@pytest.mark.parametrize("clock_hz", [0, -1e9, nan, inf, 1500])
def test_numbers_that_are_no_clock_are_refused(clock_hz):
    with pytest.raises(ValueError, match="no clock of a device"):
        WhatIf(clock_hz=clock_hz)


def test_other_types_are_refused():
    with pytest.raises(TypeError, match="a name such as"):
        WhatIf(precision=16)
    with pytest.raises(TypeError, match="give hertz"):
        WhatIf(clock_hz="1.5GHz")


def test_what_the_device_does_not_have_is_one_line():
    with pytest.raises(ValueError, match="T4 has no known bf16 matrix peak: it has one for fp64, fp32, fp16, int8"):
        in_precision(T4, "bf16")
    with pytest.raises(ValueError, match=r"1\.5 GHz is above the highest clock of A100-SXM4-80GB, 1\.41 GHz"):
        at_clock(A100, "1.5GHz")
    with pytest.raises(ValueError, match=r"GB200 \(per GPU\) has no clock listed"):
        at_clock(get("GB200 (per GPU)"), "1.5GHz")
    cpu = DeviceSpec(name="a CPU", vendor="", architecture="", kind="cpu", calibrated=Roofs(source="measured"))
    with pytest.raises(ValueError, match="a CPU has no datasheet"):
        at_clock(cpu, "1.5GHz")
    with pytest.raises(ValueError, match="it has none at all"):
        in_precision(cpu, "bf16")


def test_roofs_are_supposed_once():
    with pytest.raises(ValueError, match="begin with the device itself"):
        at_clock(at_clock(A100, "1GHz"), "1GHz")
    with pytest.raises(ValueError, match="begin with the device itself"):
        in_precision(in_precision(A100, "bf16"), "tf32")
    assert at_clock(in_precision(A100, "bf16"), "1GHz").part_name == "A100-SXM4-80GB"


@given(st.sampled_from(names()), st.sampled_from(sorted(FLOAT_BITS)), st.sampled_from(sorted(FLOAT_BITS)))
def test_fewer_bits_never_raise_a_bound(name, precision, dtype):
    device = get(name)
    try:
        supposed = in_precision(device, precision)
    except ValueError:
        return
    cost = replace(PRODUCT, matrix_dtype=dtype)
    own, other = bound_of(cost, device), bound_of(cost, supposed)
    assert other.memory_s == own.memory_s
    assert own.compute_s == 0 or other.compute_s <= own.compute_s  # 0: the device lists no peak
    assert len(other.unknown) <= len(own.unknown)


@given(st.sampled_from(names()), st.floats(1e6, 3e9))
def test_a_lower_clock_never_lowers_a_bound_but_below_the_clock_of_the_peaks(name, clock_hz):
    device = get(name)
    try:
        clocked = WhatIf(clock_hz=clock_hz).of(device)
    except ValueError:
        return
    assert bound_of(PRODUCT, clocked).compute_s >= bound_of(PRODUCT, device).compute_s / (
        device.matrix_clock_headroom or 1
    ) * (1 - 1e-12)


def test_memory_levels_without_capacity_do_not_matter():
    sheet = Roofs(source="x", vector_flops_per_s={"float32": 10.0}, memory=(MemoryLevel(name="DRAM"),))
    clocks = {"boost_clock_mhz": 1000, "matrix_peak_clock_mhz": 500}
    device = DeviceSpec(name="X", vendor="", architecture="", kind="cuda", datasheet=sheet, **clocks)
    assert at_clock(device, "500MHz").vector_peak("fp32") == 5
