from dataclasses import replace

import numpy as np
import pytest
from builders import op, spec
from hypothesis import given
from hypothesis import strategies as st
from sessions import Call, session_of

from rooflight.costs.registry import cost_of
from rooflight.devices import get
from rooflight.hardware.devices.spec import Network
from rooflight.hardware.network.algorithms import ring_s, tree_s
from rooflight.hardware.network.collectives import _KINDS, CollectiveKind, bus_factor, kind_of, payload_bytes
from rooflight.hardware.network.groups import RankGroup
from rooflight.hardware.network.topology import Interconnect, Topology
from rooflight.records.measurement import Measurement
from rooflight.records.session import Session
from rooflight.reporting.json import render_json
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.network import Communication, Intervals, communication_of
from rooflight.roofline.tables.report import report_of

H100 = get("H100-SXM5-80GB")
LINK = 1e9
KINDS = st.sampled_from([kind for kind in CollectiveKind if kind is not CollectiveKind.BARRIER])
RANKS = st.integers(2, 1024)
SIZES = st.integers(1, 1 << 40)


def all_reduce(numel: int = 1000, ranks: int = 4, **attributes):
    x = spec((numel,))
    return op("c10d::allreduce_", {"tensors": [x]}, [x], group_size=ranks, **attributes)


ADD = op("aten::add", {"self": spec((8,)), "other": spec((8,))}, [spec((8,))])
WAIT = op("_c10d_functional::wait_tensor", {"tensor": spec((8,))}, [spec((8,))])
BARRIER = op("c10d::barrier", {"tensor": spec((1,))}, group_size=4)


def timed(calls: list, seconds: list, starts: list, wall: float = 1.0) -> Session:
    """One row a step, one (start, seconds) a call."""
    session = session_of([Call(op=call) for call in calls])
    measurement = Measurement(
        wall_samples_s=np.array([wall]), op_samples_s=np.array(seconds), op_starts_s=np.array(starts), clock="by hand"
    )
    return session.with_measurement(measurement)


def found(session: Session, link: float | None = LINK, network: float | None = None) -> Communication:
    analysis = Analysis(session, H100)
    interconnect = Interconnect(link_bytes_per_s=link, network_bytes_per_s=network, network_source="by hand")
    return communication_of(session, analysis.costs, analysis.bounds, interconnect)


# -- sizes and bounds ------------------------------------------------------------------------------------------------


def test_an_all_reduce_by_hand():
    (reduced,) = found(session_of([Call(op=all_reduce()), Call(op=all_reduce())])).collectives
    assert (reduced.kind, reduced.group, reduced.calls) == (CollectiveKind.ALL_REDUCE, RankGroup(size=4), 2)
    assert reduced.payload_bytes == 2 * 4000
    assert reduced.bytes_sent == 2 * 6000  # 2 * 4000 * 3 / 4
    assert reduced.bound_s == reduced.ring_s == pytest.approx(12e-6)
    assert reduced.tree_s == pytest.approx(16e-6)  # 2 * S / B
    assert reduced.measured_s is reduced.exposed_s is reduced.bus_bytes_per_s is reduced.efficiency is None


def joined(ranks: int, latency_s: float = 0.0) -> Topology:
    interconnect = Interconnect(link_bytes_per_s=LINK, link_latency_s=latency_s)
    return Topology(nodes=1, ranks_per_node=ranks, interconnect=interconnect)


@given(KINDS, RANKS, SIZES, st.floats(0, 1e-3))
def test_the_bytes_of_the_bound_are_no_more_than_any_algorithm_needs(kind, ranks, size, latency):
    bound = bus_factor(kind, ranks) * size / LINK
    assert bound <= ring_s(kind, size, joined(ranks, latency)) * (1 + 1e-12)
    tree = tree_s(kind, size, joined(ranks, latency))
    assert tree is None or bound <= tree * (1 + 1e-12)


WHOLE, PART = spec((400,)), spec((100,))


@pytest.mark.parametrize(
    ("call", "payload", "sent"),
    [
        (op("c10d::_allgather_base_", {"output_tensor": WHOLE, "input_tensor": PART}, group_size=4), 1600, 1200),
        (op("c10d::_reduce_scatter_base_", {"output_tensor": PART, "input_tensor": WHOLE}, group_size=4), 1600, 1200),
        (op("c10d::alltoall_base_", {"output": WHOLE, "input": spec((400,))}, group_size=4), 1600, 1200),
        (op("c10d::broadcast_", {"tensors": [PART]}, [PART], group_size=4), 400, 400),
        (op("c10d::reduce_", {"tensors": [PART]}, [PART], group_size=4), 400, 400),
        (op("c10d::gather_", {"output_tensors": [PART] * 4, "input_tensors": PART}, group_size=4), 1600, 400),
        (op("c10d::scatter_", {"output_tensors": PART, "input_tensors": [PART] * 4}, group_size=4), 1600, 400),
        (op("c10d::send", {"tensors": [PART]}, group_size=4), 400, 400),
        (op("c10d::recv_", {"tensors": [PART]}, [PART], group_size=4), 400, 0),
        (BARRIER, 0, 0),
    ],
    ids=lambda value: value.name if hasattr(value, "name") else "",
)
def test_payloads_are_those_of_nccl_tests(call, payload, sent):
    (collective,) = found(session_of([Call(op=call)])).collectives
    assert (collective.payload_bytes, collective.bytes_sent) == (payload, sent)
    assert payload_bytes(call, 4) == payload
    assert collective.bound_s == pytest.approx(sent / LINK)
    assert collective.bound_s <= collective.ring_s


def test_bus_factors_are_those_of_nccl_tests():
    assert bus_factor(CollectiveKind.ALL_REDUCE, 8) == 1.75
    assert {
        bus_factor(kind, 8)
        for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_TO_ALL)
    } == {0.875}
    assert {
        bus_factor(kind, 8)
        for kind in (CollectiveKind.BROADCAST, CollectiveKind.REDUCE, CollectiveKind.SEND, CollectiveKind.RECEIVE)
    } == {1}


def test_every_collective_with_a_cost_has_a_kind_and_every_kind_a_cost():
    for name in _KINDS:
        x = spec((4,))
        assert hasattr(cost_of(op(name, {"tensors": [x]}, [x], group_size=2)), "bytes_sent"), name
    assert kind_of("aten::add") is kind_of("_c10d_functional::wait_tensor") is None


def test_groups_of_one_size_are_told_apart_by_their_ranks():
    calls = [all_reduce(group_ranks=(0, 1), group_description="mesh_tp"), all_reduce(group_ranks=(0, 2)), all_reduce()]
    groups = [collective.group for collective in found(session_of([Call(op=call) for call in calls])).collectives]
    assert sorted(group.label for group in groups) == ["0, 2", "4 ranks", "mesh_tp: 0, 1"]
    assert RankGroup(size=8, ranks=tuple(range(0, 64, 8))).label == "0, 8, 16 … 56"


def test_without_a_known_link_there_is_no_bound_and_without_collectives_nothing():
    (collective,) = found(session_of([Call(op=all_reduce())]), None).collectives
    assert collective.bound_s is collective.ring_s is collective.tree_s is None
    assert found(session_of([Call(op=ADD)])) == Communication() == found(session_of([]))
    unknown = op("c10d::allreduce_", {"tensors": [spec((4,))]})
    (collective,) = found(session_of([Call(op=unknown)])).collectives
    assert (collective.group.size, collective.bound_s, collective.bytes_sent) == (0, None, 0)


def test_a_step_and_its_table_of_collectives_have_one_bound():
    # an H100's switches add: 8 ranks of a node send 4000 B once, where an A100's ranks send 2 * 7 / 8 of them
    for device, seconds in ((H100, 4000 / 450e9), (get("A100-SXM4-80GB"), 7000 / 300e9)):
        analysis = Analysis(session_of([Call(op=all_reduce(ranks=8))]), device)
        (reduced,) = analysis.communication.collectives
        assert [analysis.totals.op_bound_s, reduced.bound_s] == pytest.approx([seconds, seconds])


def test_between_nodes_ports_bound_what_links_do_not():
    # 2 nodes of 4: 2 * 1 / 2 * 4000 B / 4 ports of 0.1 GB/s = 10 µs; a ring 2 * 7 / 8 * 4000 B over 0.4 GB/s
    session = session_of([Call(op=all_reduce(ranks=8, group_nodes=2))])
    (reduced,) = found(session, network=0.1e9).collectives
    assert reduced.bound_s == pytest.approx(10e-6)
    assert reduced.ring_s == pytest.approx(17.5e-6)
    assert reduced.hierarchical_s == pytest.approx(2 * 3 / 4 * 4e-6 + 10e-6)
    (unknown,) = found(session).collectives
    assert unknown.bound_s is unknown.ring_s is unknown.tree_s is unknown.hierarchical_s is None


def test_a_report_says_which_network_its_bounds_are_of():
    inside, between = (session_of([Call(op=all_reduce(ranks=8, **nodes))]) for nodes in ({}, {"group_nodes": 2}))
    known = H100.with_network(Network(name="InfiniBand NDR", bytes_per_s=50e9))

    def note(session, device):
        return report_of(Analysis(session, device)).table("collectives").note

    assert "Between nodes" not in note(inside, H100)
    assert "at most 100 GB/s, the fastest port there is, 800 Gbit/s" in note(between, H100)
    assert note(between, known).endswith("Between nodes a rank sends 50.0 GB/s: InfiniBand NDR.")
    network = report_of(Analysis(between, known)).data.communication.network
    assert (network.bytes_per_s, network.source, network.known) == (50e9, "InfiniBand NDR", True)
    assert report_of(Analysis(inside, known)).data.communication.network is None
    # one element reduced among 2 nodes of 4: S / 4 ports where switches may add, 2 * 1 / 2 * S / 4 where they do not
    assert Analysis(between, H100).totals.op_bound_s < Analysis(between, known).totals.op_bound_s


def test_a_collective_that_another_record_stands_for_is_not_counted():
    session = session_of([Call(op=all_reduce(), parent=1), Call(op=ADD)])
    assert found(session).collectives == ()


# -- times -----------------------------------------------------------------------------------------------------------


def test_exposed_is_what_no_computing_op_hides():
    # add 0..2, all-reduce 1..5, add 4..6; the wait does not compute
    session = timed([ADD, all_reduce(), ADD, WAIT], [[2, 4, 2, 3]], [[0, 1, 4, 2]], wall=8)
    communication = found(session)
    (reduced,) = communication.collectives
    assert (reduced.measured_s, reduced.exposed_s, reduced.overlapped_s) == (4, 2, 2)
    assert communication.exposed_step_s == 2
    assert reduced.algorithm_bytes_per_s == 1000  # 4000 B / 4 s
    assert reduced.bus_bytes_per_s == 1500  # * 2 * 3 / 4
    assert reduced.efficiency == pytest.approx(6e-6 / 4)


def test_two_collectives_at_a_time_expose_each_moment_once():
    session = timed([all_reduce(), all_reduce(8), ADD], [[4, 4, 1]], [[0, 2, 5]])
    communication = found(session)
    assert communication.measured_s == 8
    assert communication.exposed_s == 7
    assert communication.exposed_step_s == 5  # 0..6 less 5..6


def test_steps_are_looked_at_one_by_one():
    session = timed([ADD, all_reduce()], [[2, 4], [4, 4], [4, 4]], [[0, 1], [0, 0], [4, 0]])
    (reduced,) = found(session).collectives
    assert reduced.measured_s == 4
    assert reduced.exposed_s == pytest.approx(4 * (3 + 0 + 4) / 12)
    assert found(session).exposed_step_s == 3


def test_what_is_not_known_is_not_guessed():
    session = timed([ADD, all_reduce()], [[2, np.nan]], [[0, np.nan]])
    (reduced,) = found(session).collectives
    assert (reduced.measured_s, reduced.timed_calls) == (None, 0)
    assert found(session).untimed_calls == 1
    session = timed([ADD, all_reduce()], [[2, 3]], [[0, np.nan]])
    (reduced,) = found(session).collectives
    assert (reduced.measured_s, reduced.exposed_s, reduced.overlapped_s) == (3, None, None)
    no_starts = session.with_measurement(replace(session.measurement, op_starts_s=np.empty((0, 0))))
    assert found(no_starts).exposed_step_s is None


MOMENTS = st.integers(0, 50)


@given(st.lists(st.tuples(st.booleans(), MOMENTS, MOMENTS), min_size=1, max_size=12))
def test_exposed_and_overlapped_make_up_the_measured_time(program):
    calls = [all_reduce() if is_collective else ADD for is_collective, *_ in program]
    starts, seconds = ([[float(entry[index]) for entry in program]] for index in (1, 2))
    communication = found(timed(calls, seconds, starts))
    moments = np.arange(0, 100)
    busy, sending = np.zeros(100, bool), np.zeros(100, bool)
    alone = 0
    for is_collective, start, length in program:
        if not is_collective:
            busy |= (moments >= start) & (moments < start + length)
    for is_collective, start, length in program:
        if is_collective:
            inside = (moments >= start) & (moments < start + length)
            sending |= inside
            alone += int((inside & ~busy).sum())
    for collective in communication.collectives:
        assert collective.exposed_s + collective.overlapped_s == pytest.approx(collective.measured_s)
        assert 0 <= collective.exposed_s <= collective.measured_s
        assert collective.exposed_s == pytest.approx(alone)
        assert communication.exposed_step_s == pytest.approx(int((sending & ~busy).sum()))


@given(st.lists(st.tuples(MOMENTS, MOMENTS), max_size=12))
def test_a_union_is_in_order_and_apart(given_intervals):
    starts, lengths = np.array(given_intervals, dtype=float).reshape(-1, 2).T
    union = Intervals.union(starts, lengths)
    assert (union.starts[1:] > (union.starts + union.lengths)[:-1]).all()
    assert union.overlap(starts, lengths) == pytest.approx(lengths)
    assert union.lengths.sum() <= lengths.sum()


# -- in an analysis --------------------------------------------------------------------------------------------------


def test_the_account_has_the_exposed_part_of_communication_alone():
    analysis = Analysis(timed([ADD, all_reduce(), ADD], [[2, 4, 2]], [[0, 1, 4]], wall=8), H100)
    causes = analysis.account.by("cause")
    assert causes["communication"] == pytest.approx(2, rel=1e-6)  # its bound of 9 ns is light
    assert analysis.busy_s == 6
    assert causes["unknown"] == pytest.approx(2, rel=1e-4)
    assert sum(causes.values()) == pytest.approx(8)
    hidden = Analysis(timed([ADD, all_reduce()], [[4, 2]], [[0, 1]], wall=8), H100)
    assert "communication" not in hidden.account.by("cause")
    assert hidden.busy_s == 4


def test_the_report_has_a_table_facts_and_data():
    session = timed([ADD, all_reduce(group_ranks=(0, 1, 2, 3))], [[2, 4]], [[0, 1]], wall=7)
    report = report_of(Analysis(session, H100))
    table = report.table("collectives")
    assert table.rows[0][:3] == ("all-reduce", "0, 1, 2, 3", 1)
    assert dict(report.facts)["communication"] == "4.00 s of collectives, 3.00 s of the step with nothing else running"
    (entry,) = report.data.communication.collectives
    assert entry.bus_bytes_per_s == 1500
    assert entry.exposed_s + entry.overlapped_s == entry.measured_s == 4
    assert "communication" in [row.cause for row in report.data.account.rows]
    render_json(report)
    unmeasured = report_of(Analysis(session_of([Call(op=all_reduce())]), H100))
    table = unmeasured.table("collectives")
    assert table.names[-2:] == ("ring", "tree")
    assert report_of(Analysis(session_of([Call(op=ADD)]), H100)).table("collectives") is None
