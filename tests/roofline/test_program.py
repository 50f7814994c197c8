from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from builders import op, spec
from hypothesis import given, settings
from hypothesis import strategies as st
from sessions import Call, session_of

from rooflight.devices import get
from rooflight.hardware.devices.spec import DeviceSpec, Link, MemoryLevel, Roofs
from rooflight.records.session import KEPT, STOOD, Lifetimes
from rooflight.roofline.analysis import Analysis, analyze
from rooflight.roofline.bound import Limiter
from rooflight.roofline.tables.report import report_of

X = spec((8, 8))  # 256 B
B = 256
EXP = op("aten::exp", {"self": X}, [X])
ADD = op("aten::add", {"self": X, "other": X}, [X])
MM = op("aten::mm", {"self": X, "mat2": X}, [X])
ODD = op("nobody::knows", {"x": X}, [X])
ALIAS = spec((8, 8), storage=0)
ADD_IN_PLACE = op("aten::add_", {"self": ALIAS, "other": X}, [ALIAS])


def device(**roofs: object) -> DeviceSpec:
    """1 B/s of memory and units so fast that they do not matter, unless told otherwise."""
    memory = (MemoryLevel(name="DRAM", bytes_per_s=1.0),)
    figures = {"matrix_flops_per_s": {"float32": 1e12}, "vector_flops_per_s": {"float32": 1e12}, "memory": memory}
    datasheet = Roofs(source="by hand", **{**figures, **roofs})
    wire = Link(name="wire", bytes_per_s=1)
    return DeviceSpec(name="slow", vendor="", architecture="", kind="cpu", datasheet=datasheet, links=(wire,))


def analysis_of(*calls: tuple, on: DeviceSpec | None = None) -> Analysis:
    session = session_of([Call(op=signature, reads=reads, writes=writes) for signature, reads, writes in calls])
    return analyze(session, on or device())


def test_memory_bound_chains_take_what_their_edges_move():
    analysis = analysis_of((EXP, (0,), (1,)), (EXP, (1,), (2,)), (ADD, (2, 3), (4,)))
    assert analysis.totals.op_bound_s == 7 * B  # 2 + 2 + 3 tensors at 1 B/s
    assert analysis.program.fused_bound_s == 3 * B  # 0 and 3 in, 4 out
    assert analysis.program.program_bound_s == 3 * B
    assert analysis.program.fused_bytes == analysis.program.compulsory_bytes == 3 * B
    assert analysis.program.regions == 1


def test_the_program_bound_forgets_what_passes_between_kernels():
    analysis = analysis_of((EXP, (0,), (1,)), (MM, (1, 2), (3,)), (MM, (3, 2), (4,)))
    # regions: exp 2, mm 3, mm 3 tensors; in the end 0 and 2 are read once and 4 written
    assert analysis.program.fused_bound_s == 8 * B
    assert analysis.program.program_bound_s == 3 * B
    assert analysis.program.compulsory_bytes == 3 * B


def test_sums_in_another_order_leave_no_gap_below_zero():
    tenth = device(memory=(MemoryLevel(name="DRAM", bytes_per_s=10.0),))
    analysis = analysis_of(*[(MM, (3 * call, 3 * call + 1), (3 * call + 2,)) for call in range(6)], on=tenth)
    # each alone 3 * 256 / 10 = 76.8 s; added one by one 460.79999999999995, at once 460.8
    assert analysis.account.by("cause") == {"light": pytest.approx(6 * 3 * B / 10)}


def test_a_state_is_compulsory_both_ways():
    assert analysis_of((ADD_IN_PLACE, (0, 1), (0,))).program.compulsory_bytes == 3 * B


def test_within_a_region_units_work_side_by_side_and_regions_follow_each_other():
    slow = device(matrix_flops_per_s={"float32": 1.0}, vector_flops_per_s={"float32": 1.0})
    analysis = analysis_of((MM, (0, 1), (2,)), (EXP, (2,), (3,)), (MM, (3, 4), (5,)), on=slow)
    # a product is 2 * 8^3 = 1024 FLOPs, exp 64: the epilogue hides behind its product
    assert analysis.totals.op_bound_s == 1024 + 2 * B + 1024  # exp alone: 512 B at 1 B/s
    assert analysis.program.fused_bound_s == 1024 + 1024
    assert analysis.program.program_bound_s == 2048


def test_overlap_takes_the_slowest_unit_of_the_whole():
    slow = device(matrix_flops_per_s={"float32": 1.0}, vector_flops_per_s={"float32": 1 / 16})
    analysis = analysis_of((EXP, (0,), (1,)), (MM, (1, 2), (3,)), on=slow)
    # exp: 64 FLOPs at 1/16 FLOP/s = 1024 s; product: 1024 FLOPs = 1024 s, in another unit
    assert analysis.program.fused_bound_s == 2048
    assert analysis.program.program_bound_s == 1024


def test_what_is_sent_can_overlap_but_not_be_left_out():
    sent = op("_c10d_functional::all_reduce", {"input": X}, [X], group_size=8)
    slow = device(matrix_flops_per_s={"float32": 10.24})
    analysis = analysis_of((MM, (0, 1), (2,)), (sent, (3,), (4,)), on=slow)
    # product: 3 * 256 = 768 B; all-reduce: 512 B moved, 2 * 256 * 7 / 8 = 448 B sent, both at 1 B/s
    assert analysis.program.fused_bound_s == 3 * B + 2 * B
    assert analysis.program.program_bound_s == 5 * B
    sent_only = analysis_of((sent, (3,), (4,)), on=device(memory=(MemoryLevel(name="DRAM", bytes_per_s=100.0),)))
    assert sent_only.program.program_bound_s == sent_only.program.fused_bound_s == 448


def test_ops_that_a_cache_feeds_are_not_slower_when_merged():
    # each op's 512 B fit the cache, the 512 B chain that they merge into too; none may exceed the op bound
    small = cached(100.0, capacity_bytes=600)
    analysis = analysis_of(*[(EXP, (0,), (index,)) for index in range(1, 6)], on=small)
    # one by one 5 * 512 B at 100 B/s; merged 256 B in and 1280 B out, more than the cache can hold
    assert sum(group.bound_s for group in analysis.by("op")) == pytest.approx(25.6)
    # but of the five results the cache keeps 600 B
    assert analysis.program.fused_bound_s == analysis.totals.op_bound_s == 5 * B - 600


def test_nothing_is_invented_for_an_op_without_a_cost():
    assert analysis_of((ODD, (0,), (1,))).program.program_bound_s == 0
    assert analysis_of((ODD, (0,), (1,))).program.fused_bytes == 0


def test_an_empty_session_takes_no_time():
    analysis = analyze(session_of([]), get("H100-SXM5-80GB"))
    assert analysis.program.fused_bound_s == analysis.program.program_bound_s == 0
    assert analysis.program.regions == 0
    assert analysis.account.rows == ()


def cached(bytes_per_s: float | None, capacity_bytes: int = 3 * B // 2) -> DeviceSpec:
    """1 B/s of memory behind a cache that holds one and a half tensors."""
    cache = MemoryLevel(name="L2", capacity_bytes=capacity_bytes, bytes_per_s=bytes_per_s)
    return device(memory=(cache, MemoryLevel(name="DRAM", bytes_per_s=1.0)))


def test_warm_bounds_leave_out_what_a_cache_of_unknown_bandwidth_can_hold():
    calls = ((EXP, (0,), (1,)), (MM, (1, 2), (3,)))
    analysis = analysis_of(*calls, on=cached(None))
    assert analysis.totals.op_bound_s == 5 * B  # 1 + 1 and 2 + 1 tensors
    assert analysis.program.program_bound_s == 3 * B  # 0 and 2 in, 3 out
    warm = analysis.program.warm
    # of two tensors read, one and a half may have been in the cache; one that is written may stay there
    assert warm.op_bound_s == pytest.approx(0.5 * B)
    assert warm.fused_bound_s == pytest.approx(0.5 * B)
    assert warm.program_bound_s == pytest.approx(0.5 * B)


def test_the_report_says_what_the_bounds_are_with_data_in_the_cache():
    report = report_of(analysis_of((EXP, (0,), (1,)), (MM, (1, 2), (3,)), on=cached(None)))
    (note,) = [note for note in report.notes if "cache" in note]
    assert note == (
        "L2 (of unknown bandwidth, taken as infinitely fast) can hold part of what the ops move: "
        "ops may run faster than main memory's roof when their data are still there. With a full cache: op "
        "bound 128 s, fused bound 128 s, program bound 128 s."
    )
    known = report_of(analysis_of((EXP, (0,), (1,)), on=cached(10.0)))
    assert not [note for note in known.notes if "cache" in note]


def test_a_session_is_bounded_for_another_device_as_if_it_were_analysed_anew():
    first = analysis_of((EXP, (0,), (1,)), (MM, (1, 2), (3,)))
    other, anew = first.on(get("T4")), analyze(first.session, get("T4"))
    assert other.device is get("T4")
    assert (other.totals, other.program) == (anew.totals, anew.program)
    assert first.program.program_bound_s == 3 * B


def test_what_a_cache_holds_of_each_op_it_does_not_hold_of_all():
    calls = ((EXP, (0,), (1,)), (EXP, (2,), (3,)), (EXP, (4,), (5,)))
    analysis = analysis_of(*calls, on=cached(None))
    assert analysis.totals.op_bound_s == analysis.program.program_bound_s == 6 * B
    # each op's tensors fit the cache; of the three that are read one and a half do, and of the three written
    warm = analysis.program.warm
    assert warm.program_bound_s == warm.fused_bound_s == warm.op_bound_s == 3 * B


@pytest.mark.parametrize(
    "calls",
    [((EXP, (0,), (1,)), (MM, (1, 2), (3,))), ((EXP, (0,), (1,)), (EXP, (2,), (3,)), (MM, (3, 4), (5,)))],
)
def test_warm_bounds_of_measured_caches_are_the_bounds(calls):
    analysis = analysis_of(*calls, on=cached(10.0))
    program, warm = analysis.program, analysis.program.warm
    assert warm.op_bound_s == pytest.approx(analysis.totals.op_bound_s)
    assert warm.fused_bound_s == pytest.approx(program.fused_bound_s)
    assert warm.program_bound_s == pytest.approx(program.program_bound_s)


def test_what_fits_a_measured_cache_one_by_one_need_not_fit_it_together():
    """Two products read a weight of 256 B each from a cache of 600 B at 100 B/s; main memory moves 1 B/s."""
    analysis = analysis_of((MM, (0, 1), (2,)), (MM, (2, 3), (4,)), on=cached(100.0, capacity_bytes=600))
    assert (
        sum(group.bound_s for group in analysis.by("op")) == 2 * 3 * B / 100
    )  # each finds its 512 B, and leaves 256 B
    program, totals = analysis.program, analysis.totals
    assert program.program_bound_s == 3 * B - 600  # 0, 1 and 3 are read; 4 stays in the cache
    assert program.program_bound_s == program.fused_bound_s == totals.op_bound_s == analysis.account.wall_s
    assert program.warm.program_bound_s == program.program_bound_s  # the only cache was measured
    assert program.limiter is Limiter.MEMORY
    assert totals.limiter == "memory"
    report = report_of(analysis)
    assert "memory bandwidth: no cache holds the data of all of them at once" in report.conclusion
    for key in ("phase", "layer", "op"):
        assert sum(group.bound_s for group in analysis.by(key)) < analysis.totals.op_bound_s
        assert "Each op is bounded as if alone in the caches" in report.table(f"by_{key}").note
    datasheet = analysis_of((MM, (0, 1), (2,)), (MM, (2, 3), (4,))).program
    assert datasheet.program_bound_s == 4 * B
    assert datasheet.limiter is Limiter.CACHE  # none is listed, so it may be there
    assert datasheet.warm.program_bound_s == 2 * 1024 / 1e12  # arithmetic alone


def test_four_weights_that_a_cache_holds_one_by_one_are_streamed():
    """Each weight of 4096 x 4096 has 67.1 MB; the cache of 30 MB can have held 30 MB of them, once."""
    weight, row = spec((4096, 4096)), spec((1, 4096))
    mm = op("aten::mm", {"self": row, "mat2": weight}, [row])
    levels = MemoryLevel(name="L3", capacity_bytes=30e6, bytes_per_s=1e15), MemoryLevel(name="DRAM", bytes_per_s=64.3e9)
    fast = device(memory=levels, matrix_flops_per_s={"float32": 1e15})
    calls = [(mm, (index, 10 + index), (index + 1,)) for index in range(4)]
    streams = analysis_of(*calls, on=fast)
    weights, x = 4 * 4 * 4096**2, 4 * 4096  # the result stays in the cache
    assert streams.program.program_bound_s == streams.totals.op_bound_s == pytest.approx((weights + x - 30e6) / 64.3e9)
    # what fits together stays at the cache's speed: the same weight four times, and a cache of 300 MB
    again = analysis_of(*[(mm, (index, 10), (index + 1,)) for index in range(4)], on=fast)
    assert again.program.program_bound_s == pytest.approx((weights / 4 + x - 30e6) / 64.3e9)
    large = device(memory=(replace(levels[0], capacity_bytes=300e6), levels[1]), matrix_flops_per_s={"float32": 1e15})
    assert analysis_of(*calls, on=large).program.program_bound_s < 1e-6


def test_a_part_that_is_read_counts_as_a_part():
    """Two of the eight rows of each of three tensors: 64 B."""
    rows = spec((2, 8))
    exp = op("aten::exp", {"self": rows}, [rows])
    analysis = analysis_of(*[(exp, (index,), (10 + index,)) for index in range(3)], on=cached(1e12, capacity_bytes=100))
    assert analysis.program.program_bound_s == 2 * (3 * 64 - 100)


def test_what_a_step_frees_need_not_leave_the_cache():
    """Three results of 256 B that are freed before the next is made can be in the same memory; so can three inputs."""
    session = session_of([Call(op=EXP, reads=(index,), writes=(3 + index,)) for index in range(3)])
    made = np.array([STOOD, STOOD, STOOD, 0, 1, 2], dtype=np.int32)
    freed = np.array([KEPT, KEPT, KEPT, 1, 2, 3], dtype=np.int32)
    kind, local = np.zeros(6, dtype=np.int8), np.zeros(6, dtype=np.bool_)

    def bound_s(made: np.ndarray, freed: np.ndarray) -> float:
        lifetimes = Lifetimes(kind=kind, made=made, freed=freed, local=local, owner=np.zeros(6, np.int32))
        return analyze(replace(session, lifetimes=lifetimes), cached(1e12, capacity_bytes=B)).program.program_bound_s

    assert bound_s(made, np.full(6, KEPT, dtype=np.int32)) == 2 * (3 * B - B)
    assert bound_s(made, freed) == 3 * B - B  # the last is there when the step ends, and fits
    assert bound_s(np.array([STOOD, 1, 2, 0, 1, 2], dtype=np.int32), freed) == pytest.approx(6 * B / 1e12)


def least_traffic(accesses: list[tuple[int, bool]], room: int) -> int:
    """Tensors that cross the edge of a cache with ``room`` for so many, with the best content at the start and the best
    choice of what to keep after each access (tensor, whether written). What is left in the cache at the end is free.
    """
    stood = {tensor for tensor, writes in accesses if not writes}
    states = {frozenset((each, False) for each in held): 0 for n in range(room + 1) for held in combinations(stood, n)}
    for tensor, writes in accesses:
        after: dict[frozenset[tuple[int, bool]], int] = {}
        for held, cost in states.items():
            fetched = cost + (not writes and (tensor, False) not in held)
            have = held | {(tensor, writes)}
            for n in range(min(room, len(have)) + 1):
                for kept in combinations(have, n):
                    total = fetched + sum(dirty for _, dirty in have.difference(kept))
                    after[frozenset(kept)] = min(total, after.get(frozenset(kept), total))
        states = after
    return min(states.values())


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from([EXP, MM]), st.integers(0, 6), st.integers(0, 6)), max_size=4), st.integers(1, 3)
)
def test_no_cache_however_clever_beats_the_program_bound(steps, room):
    """Storages 0 to 3 stand before; each op writes the next. An ideal compiler moves nothing that is read again."""
    calls = []
    for number, (signature, *chosen) in enumerate(steps, start=4):
        reads = tuple(each % number for each in chosen[: len(signature.inputs)])
        calls.append((signature, reads, (number,)))
    read = {each for _, reads, _ in calls for each in reads}
    accesses = [(each, False) for _, reads, _ in calls for each in reads if each < 4]
    accesses += [(each, True) for *_, (each,) in calls if each not in read]
    on = cached(1e12, capacity_bytes=room * B)
    assert analysis_of(*calls, on=on).program.program_bound_s <= least_traffic(accesses, room) * B + 1e-6
