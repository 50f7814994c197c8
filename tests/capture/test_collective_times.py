"""When collectives ran: gloo processes that record, measure, save and are merged; hand-made events for the rest."""

from collections.abc import Sequence
from pathlib import Path

import forked_ranks
import numpy as np
import pytest
from builders import op, spec
from sessions import Call, session_of

import rooflight as rl
from rooflight.hardware.network.collectives import CollectiveKind
from rooflight.records.archive import load
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.network import Collective
from rooflight.roofline.ranks import RankedAnalysis, merge, ranks_report
from rooflight.sources.capture.time.collectives import Event
from rooflight.sources.capture.time.kineto import STEP_MARK, op_times
from rooflight.sources.capture.time.measure import joined_share

SLOW = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sessions of two processes, and of four."""
    folder = tmp_path_factory.mktemp("ranks")
    forked_ranks.start(Path(__file__).with_name("collective_worker.py"), folder, [2, 4])
    return folder


@pytest.mark.slow
def test_a_rank_that_measures_alone_says_so_and_ends(folder: Path):
    text = (folder / "alone.txt").read_text()
    assert text.startswith("Measurement(2 steps")
    assert "only the warm-up was timed: rank 1 runs the step, but does not measure it" in text


def merged(folder: Path, name: str, world: int, *, untimed: int = 0) -> RankedAnalysis:
    ranks = [Analysis(load(folder / f"{name}.{rank}"), rl.devices.get("H100-SXM5-80GB")) for rank in range(world)]
    ranked = merge(ranks)
    assert ranked.missing == ()
    for one in ranks:
        check(one, untimed)
    assert ranks_report(ranked).data.slowest_rank == ranked.slowest
    return ranked


def check(analysis: Analysis, untimed: int) -> None:
    """What holds of any measured rank."""
    session, found = analysis.session, analysis.communication
    assert joined_share(session, session.measurement.op_samples_s) > 0.9
    assert found.untimed_calls <= untimed
    for collective in found.collectives:
        if collective.measured_s is None:
            assert untimed
            continue
        assert collective.exposed_s + collective.overlapped_s == pytest.approx(collective.measured_s)
        assert 0 <= collective.exposed_s <= collective.measured_s * (1 + 1e-12)
    assert found.bytes_sent == analysis.totals.bytes_sent
    assert sum(analysis.account.by("cause").values()) == pytest.approx(analysis.totals.measured_s)


def by_kind(analysis: Analysis) -> dict[CollectiveKind, Collective]:
    return {collective.kind: collective for collective in analysis.communication.collectives}


# -- real processes --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_blocking_collectives_send_what_they_must_and_hide_behind_nothing(folder: Path) -> None:
    for analysis in merged(folder, "blocking", 2).analyses.values():
        found = by_kind(analysis)
        assert {kind: one.bytes_sent for kind, one in found.items()} == {
            CollectiveKind.ALL_REDUCE: 4000,  # 2 * 4000 B * 1 / 2
            CollectiveKind.BROADCAST: 4000,
            CollectiveKind.ALL_GATHER: 4000,  # 8000 B * 1 / 2
            CollectiveKind.REDUCE_SCATTER: 4000 + 40,  # 8000 B * 1 / 2, 80 B * 1 / 2
            CollectiveKind.ALL_TO_ALL: 4000,
            CollectiveKind.REDUCE: 4000,
            CollectiveKind.BARRIER: 0,
        }
        assert {one.group.ranks for one in found.values()} == {(0, 1)}
        # gloo's thread and ours take turns on a core: a hair of a collective may pass while the next op has begun
        assert found[CollectiveKind.ALL_TO_ALL].exposed_s > 0.5 * found[CollectiveKind.ALL_TO_ALL].measured_s


@pytest.mark.slow
def test_an_all_reduce_hides_behind_products(folder: Path) -> None:
    for analysis in merged(folder, "overlapping", 2).analyses.values():
        found = by_kind(analysis)
        assert found[CollectiveKind.ALL_REDUCE].overlapped_s > 0  # how much is for test_communication to say
        assert found[CollectiveKind.ALL_REDUCE].measured_s > 1e-4  # 4 MB: not the microseconds it takes to queue them
        assert found[CollectiveKind.SEND].bytes_sent == 400
        assert found[CollectiveKind.RECEIVE].payload_bytes == 400
        waits = [index for index, one in enumerate(analysis.session.records) if "wait_tensor" in one.signature.name]
        assert waits
        assert (analysis.session.measurement.op_samples_s[:, waits] == 0).all()


@pytest.mark.slow
def test_ddp_reduces_its_gradients(folder: Path) -> None:
    for analysis in merged(folder, "ddp", 2).analyses.values():
        (reduced,) = analysis.communication.collectives
        # 64 * 256 + 256 + 256 * 64 + 64 gradients
        assert reduced.payload_bytes == reduced.bytes_sent == 4 * 33088
        assert reduced.kind is CollectiveKind.ALL_REDUCE


@pytest.mark.slow
def test_groups_of_the_same_size_are_told_apart(folder: Path) -> None:
    # of two groups' work that starts at once it may be unclear which thread did which
    for rank, analysis in merged(folder, "groups", 4, untimed=2).analyses.items():
        first = (rank % 2, rank % 2 + 2)
        second = (rank // 2 * 2, rank // 2 * 2 + 1)
        found = {one.group.ranks: one for one in analysis.communication.collectives}
        assert found[first].payload_bytes == 4 * (100 + 200)
        assert found[second].payload_bytes == 4 * (200 + 300)
        assert found[0, 1, 2, 3].bytes_sent == 2 * 1600 * 3 // 4
        assert (found[first].group.description, found[second].group.description) == ("mesh_dp", "mesh_tp")


@pytest.mark.slow
def test_the_slowed_rank_is_named(folder: Path) -> None:
    ranked = merged(folder, "slowed", 4)
    assert ranked.slowest == ranked.least_exposed == SLOW
    report = ranks_report(ranked)
    assert report.conclusion.startswith(f"Rank {SLOW} is the slowest")
    assert report.data.ranks[SLOW].exposed_s < min(one.exposed_s for one in report.data.ranks if one.rank != SLOW)


@pytest.mark.slow
def test_fsdp_and_tensor_parallel_each_have_their_group(folder: Path) -> None:
    for analysis in merged(folder, "both", 4).analyses.values():
        found = {(one.kind, one.group.description): one for one in analysis.communication.collectives}
        # the row-parallel output, 32 * 64 elements
        assert found[CollectiveKind.ALL_REDUCE, "mesh_tp"].payload_bytes == 4 * 32 * 64
        # half of both weights and of the first bias, and the second bias; gathered once, kept for the backward pass
        parameters = 4 * (64 * 128 + 128 + 128 * 64 + 64)
        assert found[CollectiveKind.ALL_GATHER, "mesh_dp"].payload_bytes == parameters
        assert found[CollectiveKind.REDUCE_SCATTER, "mesh_dp"].bytes_sent == parameters // 2


# -- hand-made events ------------------------------------------------------------------------------------------------

X = spec((8,))
ADD = op("aten::add", {"self": X, "other": X}, [X])
US = 1000


def reduce_in(group: str) -> Call:
    return Call(op=op("c10d::allreduce_", {"tensors": [X]}, [X], group_size=2, group_name=group), reads=(0,))


def times(calls: Sequence[Call], events: Sequence[Event], *, device: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Microseconds, and starts in microseconds, of one marked step."""
    mark = Event(STEP_MARK, 0, 1000 * US, 1, 0, False)
    found = op_times(session_of(calls, storage_bytes=[32]), [mark, *events], device=device)
    assert len(found.seconds) == 1
    return found.seconds[0] * 1e6, found.starts_s[0] * 1e6


def host(name: str, start: int, end: int, thread: int = 1, correlation: int = 0) -> Event:
    return Event(name, start * US, end * US, thread, correlation, False)


def test_a_collective_takes_as_long_as_its_span_and_what_runs_in_it_is_no_op() -> None:
    calls = [Call(op=ADD, reads=(0,)), reduce_in("0"), Call(op=ADD, reads=(0,))]
    events = [
        host("aten::add", 10, 20),
        host("c10d::allreduce_", 30, 40),
        host("gloo:all_reduce", 50, 150, thread=2),
        host("aten::add", 60, 70, thread=2),
        host("aten::add", 80, 100),
    ]
    seconds, starts = times(calls, events)
    assert seconds == pytest.approx([10, 100, 20])
    assert starts == pytest.approx([10, 50, 80])


def test_a_collective_without_a_span_has_no_time() -> None:
    seconds, starts = times([reduce_in("0")], [host("c10d::allreduce_", 30, 40)])
    assert np.isnan(seconds).all()
    assert np.isnan(starts).all()
    two_spans = [host("gloo:all_reduce", 50 + n, 60 + n, thread=2) for n in (0, 20)]
    assert np.isnan(times([reduce_in("0")], [host("c10d::allreduce_", 30, 40), *two_spans])[0]).all()


def test_threads_are_dealt_to_groups_by_when_their_work_was_queued() -> None:
    launches = [host("c10d::allreduce_", start, start + 2) for start in (10, 20, 100)]
    spans = [
        host("gloo:all_reduce", 12, 15, thread=2),  # before the other group queued anything: thread 2 is group a's
        host("gloo:all_reduce", 102, 110, thread=3),
        host("gloo:all_reduce", 103, 130, thread=2),
    ]
    seconds, _ = times([reduce_in("a"), reduce_in("b"), reduce_in("a")], [*launches, *spans])
    assert seconds == pytest.approx([3, 8, 27])


def test_where_threads_can_be_dealt_out_in_two_ways_there_is_no_time() -> None:
    events = [
        host("c10d::allreduce_", 10, 12),
        host("c10d::allreduce_", 20, 22),
        host("gloo:all_reduce", 30, 40, thread=2),
        host("gloo:all_reduce", 31, 80, thread=3),
    ]
    assert np.isnan(times([reduce_in("a"), reduce_in("b")], events)[0]).all()
    # one group: the queue has an order
    assert times([reduce_in("a"), reduce_in("a")], events)[0] == pytest.approx([10, 49])


def test_sends_begin_inside_their_op() -> None:
    calls = [Call(op=op(name, {"tensors": [X]}, group_size=2), reads=(0,)) for name in ("c10d::send", "c10d::recv_")]
    events = [
        host("c10d::send", 10, 20),
        host("gloo:send", 18, 90),
        host("c10d::recv_", 30, 40),
        host("gloo:recv", 39, 60),
    ]
    seconds, starts = times(calls, events)
    assert seconds == pytest.approx([72, 21])
    assert starts == pytest.approx([18, 39])


def test_an_op_on_a_subclass_is_what_it_runs_inside_and_waiting_is_no_work() -> None:
    wait = op("_c10d_functional::wait_tensor", {"tensor": X}, [X])
    events = [
        host("aten::add", 10, 100),
        host("PythonSubclass", 12, 80),
        host("_c10d_functional::wait_tensor", 20, 70),
        host("aten::add", 85, 95),
    ]
    seconds, starts = times([Call(op=wait, reads=(0,)), Call(op=ADD, reads=(0,))], events)
    assert seconds == pytest.approx([0, 10])
    assert starts == pytest.approx([20, 85])


def kernel(name: str, start: int, end: int, correlation: int) -> Event:
    return Event(name, start * US, end * US, 0, correlation, True)


def test_an_nccl_kernel_is_the_collective_on_its_own_stream() -> None:
    copied = op("_c10d_functional::all_reduce", {"input": X}, [X], group_size=2, group_name="0")
    calls = [Call(op=ADD, reads=(0,)), Call(op=copied, reads=(0,)), Call(op=ADD, reads=(0,))]
    events = [
        host("aten::add", 10, 12, correlation=1),
        host("_c10d_functional::all_reduce", 14, 20, correlation=2),
        host("c10d::allreduce_", 16, 19, correlation=3),
        host("nccl:all_reduce", 17, 18, correlation=4),
        host("aten::add", 22, 24, correlation=5),
        kernel("vectorized_elementwise_kernel", 30, 40, 1),
        kernel("Memcpy DtoD (Device -> Device)", 40, 44, 2),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 45, 95, 4),
        kernel("nccl:all_reduce", 45, 95, 4),  # the device's timeline repeats the host's marks
        kernel("vectorized_elementwise_kernel", 50, 60, 5),
    ]
    seconds, starts = times(calls, events, device=True)
    assert seconds == pytest.approx([10, 50, 10])
    assert starts == pytest.approx([30, 45, 50])
    without = [event for event in events if not event.name.startswith("ncclDev")]
    assert np.isnan(times(calls, without, device=True)[0][1])  # coalesced: its kernel belongs to another op


def test_collectives_without_times_do_not_cost_the_others_theirs() -> None:
    calls = [Call(op=ADD, reads=(0,)), *[reduce_in("0")] * 9]
    seconds, _ = times(calls, [host("aten::add", 1, 2)])
    assert joined_share(session_of(calls, storage_bytes=[32]), seconds[None]) == 1
