"""The figures that ship: spot checks by hand, rules that all files keep, and the table they came from."""

import csv
import os
import tomllib
from pathlib import Path

import pytest

from rooflight import devices
from rooflight.devices import catalog
from rooflight.records.dtypes import PRECISIONS

GIB, MIB = 2**30, 2**20
ALL = devices.all_devices()


def test_h100():
    h100 = devices.get("h100-sxm5-80gb")
    assert h100.matrix_peak("bf16") == 989.4e12
    assert h100.matrix_peak("float8_e4m3fn") == 1978.9e12
    assert h100.matrix_peak("tf32") == 494.7e12
    assert h100.matrix_peak("float32") == 66.9e12  # on the vector units
    assert h100.matrix_peak("float64") == 66.9e12
    assert h100.vector_peak("float64") == 33.5e12
    assert h100.vector_peak("bf16") == 133.8e12
    assert h100.dram_bytes_per_s == 3.35e12
    assert h100.dram_capacity_bytes == 80 * GIB
    assert h100.memory[0].name == "L2"
    assert h100.memory[0].capacity_bytes == 50 * MIB
    assert h100.memory[0].bytes_per_s is None
    assert h100.link_bytes_per_s == 450e9  # 900 GB/s in both directions
    assert h100.matrix_clock_headroom == 1980 / 1830
    assert h100.launch_latency_s is None


@pytest.mark.parametrize(
    ("name", "half", "brain"),  # TFLOP/s as NVIDIA's whitepapers print them
    [
        ("a100-sxm4-80gb", 78, 39),
        ("h100-pcie-80gb", 102.4, 102.4),
        ("v100-sxm2-16gb", 31.4, 15.7),
        ("rtx-4090", 82.6, 82.6),
    ],
)
def test_vector_peaks_of_half_precision(name, half, brain):
    device = devices.get(name)
    assert (device.vector_peak("fp16"), device.vector_peak("bf16")) == (half * 1e12, brain * 1e12)


def test_a_gpu_lists_the_vector_peaks_of_half_precision_with_those_of_float32():
    for device in ALL:
        listed = device.datasheet.vector_flops_per_s
        if "float32" in listed:
            assert min(listed["float16"], listed["bfloat16"]) >= listed["float32"] * (1 - 1e-9), device.name


def test_switches_add_from_the_third_nvswitch_on():
    adding = {device.name for device in ALL if device.interconnect.link_adds}
    assert {"H100-SXM5-80GB", "B200-SXM"} < adding
    assert not adding & {"A100-SXM4-80GB", "H100-PCIe-80GB", "H100-NVL-94GB", "MI300X"}


def test_parts_without_a_unit_have_no_peak_for_it():
    v100 = devices.get("v100-sxm2-16gb")
    assert v100.matrix_peak("fp16") == 125e12
    assert v100.matrix_peak("bf16") is None
    assert v100.matrix_peak("tf32") is None
    assert v100.matrix_peak("int8") is None
    assert devices.get("a100-sxm4-80gb").matrix_peak("fp8") is None
    assert devices.get("A10G").matrix_peak("bf16") is None
    assert devices.get("P4").matrix_peak("fp16") is None


def test_last_level_cache_comes_between_l2_and_main_memory():
    mi300x = devices.get("mi300x")
    assert [level.name for level in mi300x.memory] == ["L2", "Infinity Cache", "DRAM"]
    assert mi300x.memory[1].capacity_bytes == 256 * MIB


def test_peaks_of_caches_are_those_that_vendors_print():
    for name in ("A100-PCIe-40GB", "A100-PCIe-80GB", "A100-SXM4-40GB", "A100-SXM4-80GB"):
        assert peaks_of(name) == {"L2": pytest.approx(5120 * 1.41e9)}  # bytes a clock, at its highest
    assert peaks_of("V100-SXM2-16GB") == {"L2": pytest.approx(2048 * 1.53e9)}
    assert peaks_of("V100-PCIE-32GB") == {"L2": pytest.approx(2048 * 1.38e9)}
    # per XCD 16 channels of 128 bytes, 8 XCDs; 128 channels of 64 bytes; both at 2100 MHz
    assert peaks_of("MI300X") == {
        "L2": pytest.approx(8 * 16 * 128 * 2.1e9, rel=0.001),
        "Infinity Cache": pytest.approx(128 * 64 * 2.1e9, rel=0.001),
    }
    assert peaks_of("MI325X") == peaks_of("MI300X")
    # per die 32 slices of 128 bytes at 1700 MHz
    assert peaks_of("MI210") == peaks_of("MI250X (per GCD)") == {"L2": pytest.approx(32 * 128 * 1.7e9, rel=0.001)}
    assert peaks_of("mi250x") == {"L2": 2 * peaks_of("MI210")["L2"]}


def peaks_of(name):
    return {level.name: level.peak_bytes_per_s for level in devices.get(name).memory if level.peak_bytes_per_s}


def test_what_was_only_measured_of_a_cache_is_a_note_and_bounds_nothing():
    for name in ("H100-SXM5-80GB", "H100-PCIe-80GB", "H200-SXM-141GB", "B200-SXM", "L40S"):
        assert peaks_of(name) == {}
        assert any("NVIDIA prints no L2 bandwidth; " in note for note in devices.get(name).notes)


def test_caches_are_faster_than_main_memory_and_no_part_of_bounds_on_data_in_main_memory():
    for spec in ALL:
        for level in spec.memory[:-1]:
            assert level.bytes_per_s is None  # a calibration's
            assert level.peak_bytes_per_s is None or level.peak_bytes_per_s > spec.dram_bytes_per_s
        if peaks_of(spec.name):
            assert any("L2" in source for source in spec.sources)


def test_a_link_of_unknown_speed_leaves_the_fastest_unknown():
    assert devices.get("mi350x").link_bytes_per_s is None  # its Infinity Fabric is not listed, only PCIe
    assert devices.get("l4").link_bytes_per_s == 31.508e9  # 16 lanes × 16 GT/s × 128/130 / 8


# cores or compute units times FLOPs of one per clock, and the clock where the file does not have it
ARITHMETIC = {
    ("P100-PCIE-16GB", "vector float32"): (56 * 64 * 2, None),
    ("P100-PCIE-16GB", "matrix float16"): (56 * 64 * 4, None),
    ("P100-SXM2-16GB", "vector float32"): (56 * 64 * 2, None),
    ("P100-SXM2-16GB", "matrix float16"): (56 * 64 * 4, None),
    ("P4", "vector float32"): (20 * 128 * 2, 1114),
    ("P4", "matrix int8"): (20 * 128 * 8, 1114),
    ("AMD Instinct MI100", "vector float32"): (120 * 128, 1502),
    ("AMD Instinct MI100", "matrix float32"): (120 * 256, 1502),
    ("AMD Instinct MI100", "matrix float16"): (120 * 1024, 1502),
    ("AMD Instinct MI100", "matrix bfloat16"): (120 * 512, 1502),
}


@pytest.mark.parametrize(("name", "peak"), ARITHMETIC)
def test_peaks_are_units_times_clock(name, peak):
    device, (unit, dtype) = devices.get(name), peak.split()
    flops, clock_mhz = ARITHMETIC[name, peak]
    found = device.matrix_peak(dtype) if unit == "matrix" else device.vector_peak(dtype)
    assert found == pytest.approx(flops * (clock_mhz or device.boost_clock_mhz) * 1e6, rel=0.002)


def test_every_device_says_where_its_figures_come_from():
    for spec in ALL:
        assert spec.sources, spec.name
        assert spec.datasheet.source, spec.name
        assert spec.confidence in ("A", "B", "C"), spec.name
        assert spec.dram_bytes_per_s, spec.name
        assert spec.dram_capacity_bytes, spec.name
        assert spec.kind == ("cuda" if spec.vendor in ("NVIDIA", "AMD") else "other"), spec.name


def test_narrower_formats_are_no_slower():
    for spec in ALL:
        peaks = [spec.matrix_peak(p) for p in ("float64", "float32", "tfloat32", "bfloat16", "float8", "float4")]
        known = [peak for peak in peaks if peak is not None]
        if spec.name == "B300-SXM" or spec.architecture.startswith("CDNA") or spec.name.startswith(("A100", "A30")):
            known = known[2:]  # matrix float64, vector float32: other units
        assert known == sorted(known), spec.name


def test_doubts_name_figures_of_their_file():
    for path in sorted(catalog._SHIPPED.glob("*.toml")):
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        for doubt in content.get("unverified", ()):
            table, _, key = doubt.partition(".")
            if table == "links":
                assert key in [link["name"] for link in content["links"]], path.stem
            else:
                assert key in content[table] if key else table in content, path.stem


def test_devices_whose_peaks_belong_to_another_clock_say_so():
    for spec in ALL:
        if spec.architecture == "Hopper":
            assert spec.matrix_peak_clock_mhz
            # FP16 tensor cores do 4096 FLOPs per clock and SM
            peak = spec.unit_count * 4096 * spec.matrix_peak_clock_mhz * 1e6
            assert spec.matrix_peak("fp16") == pytest.approx(peak, rel=0.002)
            assert any("MHz" in note for note in spec.notes)


# The table calls four rows by names that say what they count; the catalog has names that can be typed.
RENAMED = {
    "GB200 (per GPU)": "gb200-per-gpu",
    "GB300 (per GPU)": "gb300-per-gpu",
    "MI250X": "mi250x",
    "MI250X (per GCD)": "mi250x-per-gcd",
}
MATRIX = {
    "float64": "fp64_matrix_tflops",
    "float32": "fp32_matrix_tflops",
    "tfloat32": "tf32_matrix_tflops_dense",
    "float16": "fp16_matrix_tflops_dense",
    "bfloat16": "bf16_matrix_tflops_dense",
    "float8": "fp8_matrix_tflops_dense",
    "int8": "int8_matrix_tops_dense",
    "float4": "fp4_matrix_tflops_dense",
}
ROUNDED = ("V100-PCIE-16GB", "V100-PCIE-32GB")  # the table prints 14.0 of 14.13 TFLOP/s, and measurements pass it
CLOCKS_OF_DRIVERS = {"B200-SXM": 1965, "GH200-96GB": 1980}  # where the table has no clock
TEXTS = ("vendor", "architecture", "compute_capability", "form_factor", "memory_type", "confidence")


def table_rows():
    folder = os.environ.get("ROOFLIGHT_DATA")
    path = Path(folder) / "device_specs.csv" if folder else None
    if path is None or not path.is_file():
        return [pytest.param(None, marks=pytest.mark.skip("ROOFLIGHT_DATA does not point at the table"))]
    with path.open(encoding="utf-8", newline="") as file:
        return [pytest.param(row, id=row["device"]) for row in csv.DictReader(file)]


def si(text, unit):
    return None if text == "" else pytest.approx(float(text) * unit, rel=1e-12)


@pytest.mark.parametrize("row", table_rows())
def test_every_value_of_the_table(row):
    spec = devices.get(RENAMED.get(row["device"], row["device"]))
    sheet = spec.datasheet
    assert {*MATRIX, "float16_accumulate"} == set(PRECISIONS)
    for precision, column in MATRIX.items():
        assert sheet.matrix_flops_per_s.get(precision) == si(row[column], 1e12)
    for precision, column in (("float64", "fp64_vector_tflops"), ("float32", "fp32_vector_tflops")):
        if spec.name in ROUNDED:
            exact = spec.unit_count * {"float64": 32, "float32": 64}[precision] * 2 * spec.boost_clock_mhz * 1e6
            assert sheet.vector_flops_per_s.get(precision) == pytest.approx(exact, rel=1e-3)
            continue
        if spec.architecture == "CDNA2" and precision == "float32":  # the table has it without packed instructions
            assert sheet.vector_flops_per_s["float32"] == pytest.approx(2 * float(row[column]) * 1e12, rel=3e-3)
            continue
        assert sheet.vector_flops_per_s.get(precision) == si(row[column], 1e12)
    for field in TEXTS:
        assert getattr(spec, field) == row[field]
    assert spec.dram_capacity_bytes == si(row["memory_gb"], GIB)
    assert spec.dram_bytes_per_s == si(row["memory_bandwidth_gb_per_s"], 1e9)
    caches = [row[column] for column in ("l2_cache_mb", "last_level_cache_mb") if row[column]]
    assert [level.capacity_bytes for level in sheet.memory[:-1]] == [si(text, MIB) for text in caches]
    assert ("L2" in [level.name for level in sheet.memory]) == bool(row["l2_cache_mb"])
    assert spec.unit_count == si(row["sm_or_cu_count"], 1)
    assert spec.boost_clock_mhz == CLOCKS_OF_DRIVERS.get(spec.name, si(row["boost_clock_mhz"], 1))
    assert spec.tdp_w == si(row["tdp_w"], 1)
    links = {link.name: link.bytes_per_s for link in spec.links}
    if row["pcie_gen"]:
        assert links.pop(f"PCIe {row['pcie_gen']}.0 x16")
    if row["scaleup_link"]:
        assert links.pop(row["scaleup_link"]) == si(row["scaleup_bandwidth_gb_per_s_bidirectional"], 1e9 / 2)
    assert not links
    # the table has no bandwidths of caches and no times of kernels
    of_the_table = [source for source in spec.sources if "L2" not in source and "shortest kernel" not in source]
    assert (spec.least_kernel_s is not None) == any("shortest kernel" in source for source in spec.sources)
    assert of_the_table == row["source"].split("; ")
    assert "; ".join(spec.checked_against) == row["checked_against"]
    assert len(spec.unverified) >= min(1, len(row["unverified_fields"]))


def test_what_is_reached_has_a_source_and_is_credible():
    """Published streams reach from half of the bandwidth to nearly all, large products from a fifth of the peak."""
    published = [spec for spec in devices.all_devices() if spec.reached is not None]
    assert len(published) > 20
    for spec in published:
        assert all(spec.reached.sources), spec.name
        share = spec.reached_bandwidth
        assert share is None or 0.5 < share < 1, spec.name
        for precision in spec.reached.matrix_flops_per_s:
            assert 0.2 < spec.reached_products(precision) < 1, (spec.name, precision)
