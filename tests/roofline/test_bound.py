from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from builders import spec
from hypothesis import given
from hypothesis import strategies as st

from rooflight.costs.cost import OpCost
from rooflight.costs.lanes import FEWEST_LANES, array_of, over_lanes
from rooflight.devices import get
from rooflight.hardware.devices.spec import DeviceSpec, Link, MemoryLevel, Roofs
from rooflight.roofline.bound import Bound, Limiter, bound_of, fits_unknown_cache, memory_time, uncached_memory_time

H100 = get("H100-SXM5-80GB")
CPU = DeviceSpec(
    name="two cores",
    vendor="",
    architecture="",
    kind="cpu",
    calibrated=Roofs(
        source="by hand",
        matrix_flops_per_s={"float32": 100e9, "bfloat16": 200e9},
        vector_flops_per_s={"float32": 50e9},
        memory=(
            MemoryLevel(name="L1", capacity_bytes=1000, bytes_per_s=1e12),
            MemoryLevel(name="L2", capacity_bytes=10_000, bytes_per_s=1e11),
            MemoryLevel(name="DRAM", capacity_bytes=1_000_000, bytes_per_s=1e10),
        ),
    ),
)


def test_a_big_product_is_limited_by_the_matrix_peak():
    # 2 * 8192^3 = 1.0995e12 FLOPs over 989.4e12 FLOP/s = 1.1113 ms; 3 * 8192^2 * 2 B over 3.35e12 B/s = 0.12 ms
    cost = OpCost(
        matrix_flops=2 * 8192**3, matrix_dtype="bfloat16", bytes_read=2 * 8192**2 * 2, bytes_written=8192**2 * 2
    )
    bound = bound_of(cost, H100)
    assert bound.compute_s == pytest.approx(2 * 8192**3 / 989.4e12)
    assert bound.memory_s == pytest.approx(3 * 8192**2 * 2 / 3.35e12)
    assert bound.time_s == bound.compute_s
    assert bound.limiter is Limiter.COMPUTE


def test_an_addition_is_limited_by_memory():
    n = 1 << 28
    bound = bound_of(OpCost(vector_flops=n, vector_dtype="float32", bytes_read=8 * n, bytes_written=4 * n), H100)
    assert bound.time_s == pytest.approx(12 * n / 3.35e12)
    assert bound.limiter is Limiter.MEMORY
    assert not bound.cache_resident


def test_an_all_reduce_is_limited_by_one_direction_of_the_link():
    bound = bound_of(OpCost(bytes_read=1 << 20, bytes_sent=450_000_000), H100)
    assert bound.network_s == pytest.approx(1e-3)  # 450 MB over 450 GB/s, half of the 900 that are printed
    assert bound.limiter is Limiter.NETWORK


def test_a_view_is_limited_by_nothing():
    assert bound_of(OpCost(), H100).limiter is Limiter.NOTHING


def test_matrix_and_vector_units_work_at_the_same_time():
    cost = OpCost(matrix_flops=100, matrix_dtype="float32", vector_flops=100, vector_dtype="float32")
    assert bound_of(cost, CPU).compute_s == pytest.approx(100 / 50e9)  # the slower of 1 ns and 2 ns, not their sum


def test_an_unknown_peak_is_named_and_counts_as_nothing():
    bound = bound_of(OpCost(matrix_flops=10, matrix_dtype="bfloat16", bytes_read=4), get("V100-SXM2-16GB"))
    assert bound.unknown == ("bfloat16 matrix peak",)
    assert bound.compute_s == 0
    assert bound.time_s == bound.memory_s > 0


def test_float32_products_have_the_peak_of_the_precision_they_run_at():
    cost = OpCost(matrix_flops=4947, matrix_dtype="float32")
    assert bound_of(cost, H100, "tfloat32").compute_s == pytest.approx(4947 / 494.7e12)
    assert bound_of(cost, H100).compute_s == pytest.approx(4947 / 66.9e12)


def test_each_level_supplies_what_the_nearer_ones_could_not_hold():
    levels = CPU.memory
    assert memory_time(500, 500, levels) == pytest.approx(1000 / 1e12)  # all may be in L1
    # 3000 read and 500 written: L1 held at most 1000 of the read, and may still hold the written
    assert memory_time(3000, 500, levels) == pytest.approx(2000 / 1e11)
    # 60 kB read, 30 kB written: L2 held and holds 10 kB of each, DRAM moves 50 + 20 kB
    assert memory_time(60_000, 30_000, levels) == pytest.approx(70_000 / 1e10)


def test_a_datasheet_knows_no_cache_bandwidth_so_main_memory_counts_in_full():
    assert memory_time(1 << 20, 1 << 20, H100.memory) == pytest.approx((1 << 21) / 3.35e12)
    assert fits_unknown_cache(1 << 21, H100.memory)
    assert not fits_unknown_cache(1 << 30, H100.memory)
    assert not fits_unknown_cache(0, H100.memory)


sizes = st.integers(0, 1 << 40)


@given(sizes, sizes, sizes, sizes, sizes)
def test_a_bound_is_at_least_each_of_its_terms_and_grows_with_the_work(matrix, vector, read, written, more):
    device = H100
    small = OpCost(
        matrix_flops=matrix, matrix_dtype="bfloat16", vector_flops=vector, bytes_read=read, bytes_written=written
    )
    bound = bound_of(small, device)
    assert bound.time_s >= matrix / 989.4e12 * (1 - 1e-12)
    assert bound.time_s >= (read + written) / 3.35e12 * (1 - 1e-12)
    for level_set in (device.memory, CPU.memory):
        assert memory_time(read + more, written, level_set) >= memory_time(read, written, level_set)


@given(sizes, sizes)
def test_knowing_a_cache_never_raises_the_bound(read, written):
    without = CPU.memory[-1:]
    assert memory_time(read, written, CPU.memory) <= max(
        memory_time(read, written, without), (read + written) / 1e11, (read + written) / 1e12
    ) * (1 + 1e-12)


def test_a_link_of_unknown_speed_is_named():
    device = DeviceSpec(
        name="x", vendor="", architecture="", kind="other", links=(Link(name="wire"),), calibrated=CPU.calibrated
    )
    assert bound_of(OpCost(bytes_sent=5), device).unknown == ("link bandwidth",)


def test_integer_arithmetic_runs_on_the_vector_lanes():
    assert spec((4,), "int64").nbytes == 32
    assert bound_of(OpCost(vector_flops=50, vector_dtype="int64"), CPU).compute_s == pytest.approx(1e-9)


amounts = st.integers(0, 1 << 62) | st.integers(0, 30_000)
work = st.fixed_dictionaries(dict.fromkeys(("matrix_flops", "vector_flops", "bytes_read", "bytes_written"), amounts))


@given(st.lists(work, min_size=2, max_size=8), st.sampled_from([H100, CPU]), st.sampled_from(["float32", "float64"]))
def test_a_bound_of_many_shapes_is_that_of_each(works: list[dict[str, int]], device: DeviceSpec, dtype: str):
    def bound(counts: Mapping[str, int]) -> Bound:
        return bound_of(OpCost(matrix_dtype=dtype, vector_dtype=dtype, **counts), device)

    repeated = [each for each in works for _ in range(FEWEST_LANES)]
    columns = {name: np.array([each[name] for each in repeated]) for name in works[0]}
    for rows, found in over_lanes(bound, columns):
        for field in ("compute_s", "memory_s", "network_s", "time_s", "cache_resident"):
            told = array_of(getattr(found, field), len(rows)).tolist()
            assert told == [getattr(bound(repeated[row]), field) for row in rows.tolist()]
        assert all(bound(repeated[row]).unknown == found.unknown for row in rows.tolist())


@given(st.lists(st.tuples(amounts, amounts), min_size=1, max_size=8), st.sampled_from([H100.memory, CPU.memory, ()]))
def test_times_of_arrays_are_those_of_their_numbers(moved: list[tuple[int, int]], levels: tuple[MemoryLevel, ...]):
    read, written = np.array(moved, dtype=np.float64).T
    assert memory_time(read, written, levels) == pytest.approx(
        [memory_time(*each, levels) for each in moved], rel=1e-12
    )


@given(amounts, amounts, st.sampled_from([H100.memory, CPU.memory]))
def test_what_caches_may_have_held_only_takes_time_away(read: int, written: int, levels: tuple[MemoryLevel, ...]):
    assert uncached_memory_time(read, written, levels) <= memory_time(read, written, levels)


@given(amounts, amounts, st.sampled_from([get(name).memory for name in ("A100-SXM4-80GB", "MI300X", "V100-PCIE-16GB")]))
def test_peaks_of_caches_bound_what_comes_from_them_and_nothing_else(read: int, written: int, levels):
    unpeaked = tuple(replace(level, peak_bytes_per_s=None) for level in levels)
    cold_s, warm_s = memory_time(read, written, levels), uncached_memory_time(read, written, levels)
    assert cold_s == memory_time(read, written, unpeaked) == pytest.approx((read + written) / levels[-1].bytes_per_s)
    assert uncached_memory_time(read, written, unpeaked) <= warm_s <= cold_s
    assert warm_s >= max(read, written) / levels[0].peak_bytes_per_s


def test_an_infinity_cache_supplies_what_l2_cannot_hold():
    mi300x = get("MI300X").memory
    mib = 2**20
    # 132 MiB read: all through L2 at 34.4 TB/s, 100 of them from the Infinity Cache at 17.2, none from memory
    assert uncached_memory_time(132 * mib, 0, mi300x) == pytest.approx(100 * mib / 17.2e12)
    assert uncached_memory_time(40 * mib, 0, mi300x) == pytest.approx(40 * mib / 34.4e12)
    # 300 MiB read: 44 from memory at 5.3 TB/s, 268 from the Infinity Cache, which take longer
    assert uncached_memory_time(300 * mib, 0, mi300x) == pytest.approx(268 * mib / 17.2e12)


def test_data_that_fit_a_cache_are_not_called_main_memory():
    copied = OpCost(bytes_read=10**6, bytes_written=10**6)
    assert bound_of(copied, get("A100-SXM4-80GB")).limiter is Limiter.CACHE
    assert bound_of(copied, H100).limiter is Limiter.CACHE
    assert bound_of(copied, CPU).limiter is Limiter.MEMORY  # its caches were measured, and bound it
    nvl = get("H100-NVL-94GB")  # lists no cache, and may have one of 64 MiB
    assert bound_of(copied, nvl).limiter is Limiter.CACHE
    assert bound_of(OpCost(bytes_read=64 << 20, bytes_written=1), nvl).limiter is Limiter.MEMORY
    large = OpCost(bytes_read=10**9, bytes_written=10**9)
    assert bound_of(large, H100).limiter is Limiter.MEMORY
    computing = OpCost(matrix_flops=10**12, matrix_dtype="bfloat16", bytes_read=10**6)
    assert bound_of(computing, H100).limiter is Limiter.COMPUTE


def test_caches_that_nobody_lists_may_hold_64_mib():
    level = (MemoryLevel(name="DRAM", bytes_per_s=1e9),)
    assert uncached_memory_time(64 << 20, 64 << 20, level) == 0
    # 36 MiB beyond either of them: 72 MiB over 1e9 B/s
    assert uncached_memory_time(100 << 20, 100 << 20, level) == pytest.approx((72 << 20) / 1e9)
