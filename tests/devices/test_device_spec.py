"""DeviceSpec: which figure a bound uses. Every figure here is made up, and small."""

from dataclasses import replace

import pytest

from rooflight.devices import DeviceSpec, Link, MemoryLevel, Roofs
from rooflight.hardware.devices.spec import Network, Reached

DATASHEET = Roofs(
    source="datasheet",
    matrix_flops_per_s={"float16": 100.0, "bfloat16": 100.0, "float8": 200.0},
    vector_flops_per_s={"float32": 20.0, "float64": 10.0},
    memory=(MemoryLevel(name="L2", capacity_bytes=50), MemoryLevel(name="DRAM", capacity_bytes=800, bytes_per_s=30.0)),
)
MEASURED = Roofs(
    source="measured",
    matrix_flops_per_s={"float16": 110.0, "bfloat16": 90.0, "float32": 18.0},
    vector_flops_per_s={"float32": 15.0, "bfloat16": 14.0},
    memory=(MemoryLevel(name="L2", bytes_per_s=70.0), MemoryLevel(name="HBM", capacity_bytes=790, bytes_per_s=28.0)),
    launch_latency_s=4e-6,
)


def device(**fields) -> DeviceSpec:
    return DeviceSpec(name="X1", vendor="Acme", architecture="Anvil", kind="cuda", **fields)


PRINTED = device(datasheet=DATASHEET)
CALIBRATED = PRINTED.with_calibration(MEASURED)


def test_calibration_makes_a_new_device():
    assert CALIBRATED.calibrated is MEASURED
    assert PRINTED.calibrated is None
    assert CALIBRATED.dram_bytes_per_s == 30  # measured below the datasheet


HALF = device(datasheet=Roofs(source="", vector_flops_per_s={"float32": 20.0, "float16": 40.0}))


@pytest.mark.parametrize(
    ("spec", "unit", "peaks"),
    [
        # the higher of datasheet and calibration: measured above the datasheet, and below it
        (CALIBRATED, "matrix", {"fp16": 110, "bf16": 100}),
        # by any name of a dtype, and of every layout of float8
        (PRINTED, "matrix", {"fp16": 100, "bf16": 100, "bfloat16": 100, "torch.bfloat16": 100}),
        (PRINTED, "matrix", {"fp8": 200, "float8_e5m2": 200}),
        # wide products run on vector units where no matrix rate is listed; a product measured at 18 lowers no unit
        (PRINTED, "matrix", {"float32": 20, "float64": 10, "complex64": 20}),
        (CALIBRATED, "matrix", {"float32": 20}),
        # other products without a matrix rate are unknown
        (PRINTED, "matrix", {"tf32": None, "int8": None, "int64": None}),
        # integers have the float32 vector peak; halves that nobody lists are unknown on a GPU, and float32 on a CPU
        (PRINTED, "vector", dict.fromkeys(("int8", "int64", "bool", "tf32"), 20)),
        (PRINTED, "vector", dict.fromkeys(("bf16", "fp16", "fp8"), None)),
        (replace(PRINTED, kind="cpu"), "vector", dict.fromkeys(("bf16", "fp16", "fp8"), 20)),
        (PRINTED, "vector", {"float64": 10, "complex128": 10}),
        (HALF, "vector", {"fp16": 40, "fp8": 40, "float64": None}),
        (CALIBRATED, "vector", {"bf16": 20}),  # max(datasheet's float32 20, measured bfloat16 14)
    ],
)
def test_peaks(spec, unit, peaks):
    assert {dtype: getattr(spec, f"{unit}_peak")(dtype) for dtype in peaks} == peaks


def test_memory_merges_caches_by_name_and_main_memory_by_place():
    assert CALIBRATED.memory == (
        MemoryLevel(name="L2", capacity_bytes=50, bytes_per_s=70.0),
        MemoryLevel(name="DRAM", capacity_bytes=790, bytes_per_s=30.0),
    )
    assert CALIBRATED.dram_capacity_bytes == 790  # measured
    assert PRINTED.dram_capacity_bytes == 800


def test_a_cache_that_only_one_source_knows_takes_its_place_by_size():
    near = Roofs(source="", memory=(MemoryLevel(name="L1", capacity_bytes=5), MemoryLevel(name="DRAM")))
    assert [level.name for level in PRINTED.with_calibration(near).memory] == ["L1", "L2", "DRAM"]


def test_nothing_known_is_unknown_everywhere():
    empty = device()
    assert empty.memory == ()
    assert empty.dram_bytes_per_s is None
    assert empty.dram_capacity_bytes is None
    assert empty.link_bytes_per_s is None
    assert empty.launch_latency_s is None
    assert empty.matrix_clock_headroom is None
    assert empty.matrix_peak("fp32") is None
    assert empty.vector_peak("fp32") is None


def test_a_processor_has_calibrated_roofs_only():
    processor = DeviceSpec(name="EPYC", vendor="AMD", architecture="", kind="cpu", calibrated=MEASURED)
    assert processor.matrix_peak("float32") == 18
    assert processor.dram_bytes_per_s == 28
    assert processor.launch_latency_s == 4e-6


def test_the_fastest_link_counts_unless_a_link_is_unknown():
    slow, fast, unknown = Link(name="PCIe", bytes_per_s=3.0), Link(name="NVLink", bytes_per_s=9.0), Link(name="ICI")
    assert device(links=(slow, fast)).link_bytes_per_s == 9
    assert device(links=(slow, unknown)).link_bytes_per_s is None


def test_headroom_is_boost_over_the_clock_of_the_peaks():
    assert device(boost_clock_mhz=1980, matrix_peak_clock_mhz=1800).matrix_clock_headroom == 1.1
    assert device(boost_clock_mhz=1980).matrix_clock_headroom == 1


def test_an_unknown_dtype_is_refused():
    with pytest.raises(ValueError, match='unknown dtype "fp7"'):
        PRINTED.matrix_peak("fp7")


@pytest.mark.parametrize("figure", [0.0, -1.0, float("inf"), float("nan")])
def test_a_figure_is_positive_or_absent(figure):
    with pytest.raises(ValueError, match="nothing where it is unknown"):
        Roofs(source="", matrix_flops_per_s={"float16": figure})
    with pytest.raises(ValueError, match="bandwidth"):
        MemoryLevel(name="L2", bytes_per_s=figure)
    with pytest.raises(ValueError, match="bandwidth"):
        Link(name="PCIe", bytes_per_s=figure)


def test_peaks_have_known_precisions():
    with pytest.raises(ValueError, match='unknown vector precision "bf16": use one of float64'):
        Roofs(source="", vector_flops_per_s={"bf16": 1.0})


def test_between_nodes_a_gpu_has_the_fastest_port_unless_told_otherwise():
    gpu = device(links=(Link(name="Rope", bytes_per_s=400e9),))
    assert (gpu.interconnect.link_bytes_per_s, gpu.interconnect.network_bytes_per_s) == (400e9, 100e9)
    assert not gpu.interconnect.network_known
    told = gpu.with_network(Network(name="Twine", bytes_per_s=25e9)).interconnect
    assert (told.network_bytes_per_s, told.network_source, told.network_known) == (25e9, "Twine", True)
    assert not told.network_adds
    cpu = DeviceSpec(name="C1", vendor="Acme", architecture="Anvil", kind="cpu")
    assert cpu.interconnect.network_bytes_per_s is None


def test_a_link_may_join_nodes():
    rack = device(links=(Link(name="Rope", bytes_per_s=400e9, joins=72), Link(name="PCIe", bytes_per_s=50e9)))
    assert rack.interconnect.link_ranks == 72


PUBLISHED = Reached(sources=("a stream",), bytes_per_s=24.0, matrix_flops_per_s={"float16": 80.0, "float8": 210.0})


def test_what_a_device_reaches_is_a_share_of_its_roofs_and_no_roof():
    known = device(datasheet=DATASHEET, reached=PUBLISHED)
    assert known.reached_bandwidth == 24 / 30
    assert known.reached_products("fp16") == 80 / 100
    assert known.reached_products("fp8") == 1  # more than the peak is the peak
    assert known.reached_products("bf16") is None
    assert known.reached_products("int64") is None
    assert known.dram_bytes_per_s == 30
    assert known.matrix_peak("fp16") == 100


def test_a_calibration_says_what_its_device_reaches():
    known = device(datasheet=DATASHEET, reached=PUBLISHED, calibrated=MEASURED)
    assert known.reached_bandwidth == 28 / 30
    assert known.reached_products("fp16") == 1  # measured above the datasheet
    assert known.reached_products("bf16") == 90 / 100
    assert known.reached_products("fp8") == 1


def test_a_device_with_a_calibration_alone_does_not_know_what_it_reaches():
    """All of its roofs are what it reached: how far below them its ops stay is for its samples to say."""
    alone = device(calibrated=MEASURED)
    assert alone.reached_bandwidth is None
    assert alone.reached_products("fp16") is None
    assert PRINTED.reached_bandwidth is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bytes_per_s": 0.0}, "reached bandwidth is 0.0"),
        ({"matrix_flops_per_s": {"float16": -1.0}}, "reached float16 is -1.0"),
        ({"matrix_flops_per_s": {"fp16": 1.0}}, 'unknown reached precision "fp16"'),
    ],
)
def test_what_is_reached_is_positive_and_of_a_known_precision(fields, message):
    with pytest.raises(ValueError, match=message):
        Reached(sources=("a stream",), **fields)
