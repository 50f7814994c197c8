from dataclasses import replace
from math import inf, isnan, log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.hardware.network.algorithms import fastest_s, hierarchical_s, least_s, ring_s, tree_s
from rooflight.hardware.network.collectives import CollectiveKind, bus_factor, sent_share
from rooflight.hardware.network.groups import RankGroup
from rooflight.hardware.network.topology import Interconnect, Topology

LINK, PORT = 400e9, 50e9
CLUSTER = Interconnect(link_bytes_per_s=LINK, network_bytes_per_s=PORT, link_latency_s=1e-6, network_latency_s=5e-6)
QUIET = replace(CLUSTER, link_latency_s=0.0, network_latency_s=0.0)
S = 8e9
KINDS = st.sampled_from(list(CollectiveKind))
NODES, HERE = st.integers(1, 256), st.integers(1, 72)
SIZES = st.integers(0, 1 << 40)
SPEEDS = st.floats(1e9, 2e12)
LATENCIES = st.floats(0, 1e-3)
CLUSTERS = st.builds(
    Interconnect,
    link_bytes_per_s=SPEEDS,
    network_bytes_per_s=SPEEDS,
    link_adds=st.booleans(),
    network_adds=st.booleans(),
    link_latency_s=LATENCIES,
    network_latency_s=LATENCIES,
)
ALGORITHMS = (ring_s, tree_s, hierarchical_s)
ALL_REDUCE, ALL_GATHER, ALL_TO_ALL = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.ALL_TO_ALL


def ranks(nodes, here, cluster: Interconnect = QUIET) -> Topology:
    return Topology(nodes=nodes, ranks_per_node=here, interconnect=cluster)


# -- by hand ---------------------------------------------------------------------------------------------------------


def test_rings_by_hand():
    # in a node, 8 ranks: 14 steps of 1 µs, 2 * 7 / 8 * 8 GB / 400 GB/s = 35 ms
    assert ring_s(ALL_REDUCE, S, ranks(1, 8, CLUSTER)) == pytest.approx(14e-6 + 35e-3)
    assert ring_s(ALL_GATHER, S, ranks(1, 8, CLUSTER)) == pytest.approx(7e-6 + 17.5e-3)
    # 2 nodes of 4: 4 ports of 50 GB/s carry less than a link; 2 * 7 / 8 * 8 GB / 200 GB/s = 70 ms, every step as slow
    # as its hop between nodes
    assert ring_s(ALL_REDUCE, S, ranks(2, 4, CLUSTER)) == pytest.approx(14 * 5e-6 + 70e-3)
    # 2 nodes of 16: the link is slower than 16 ports; 2 * 31 / 32 * 8 GB / 400 GB/s
    assert ring_s(ALL_REDUCE, S, ranks(2, 16)) == pytest.approx(2 * 31 / 32 * 20e-3)
    # 8 nodes of 1: one port
    assert ring_s(CollectiveKind.BROADCAST, S, ranks(8, 1, CLUSTER)) == pytest.approx(7 * 5e-6 + 160e-3)
    assert ring_s(CollectiveKind.SEND, S, ranks(2, 1, CLUSTER)) == pytest.approx(5e-6 + 160e-3)


def test_an_all_to_all_uses_links_and_ports_at_once():
    # 2 nodes of 4: 3 / 8 of 8 GB over 400 GB/s is 7.5 ms, 4 / 8 over 50 GB/s is 80 ms
    assert ring_s(ALL_TO_ALL, S, ranks(2, 4)) == pytest.approx(80e-3)
    assert ring_s(ALL_TO_ALL, S, ranks(1, 4)) == pytest.approx(15e-3)  # 3 / 4 * 20 ms


def test_trees_by_hand():
    # log2(4) hops between nodes, log2(8) within, up and down; 2 * 8 GB / 400 GB/s
    assert tree_s(ALL_REDUCE, S, ranks(4, 8, CLUSTER)) == pytest.approx(2 * (2 * 5e-6 + 3 * 1e-6) + 40e-3)
    assert tree_s(CollectiveKind.REDUCE, S, ranks(1, 8, CLUSTER)) == pytest.approx(3e-6 + 20e-3)
    assert tree_s(ALL_GATHER, S, ranks(1, 8)) is None


def test_hierarchies_by_hand():
    # 2 nodes of 4: 2 * 3 / 4 * 8 GB / 400 GB/s = 30 ms within; 2 * 1 / 2 * 8 GB / 4 / 50 GB/s = 40 ms between
    assert hierarchical_s(ALL_REDUCE, S, ranks(2, 4)) == pytest.approx(70e-3)
    assert hierarchical_s(ALL_REDUCE, 0, ranks(2, 4, CLUSTER)) == pytest.approx(6e-6 + 10e-6)
    assert hierarchical_s(ALL_GATHER, S, ranks(2, 4)) == pytest.approx(35e-3)
    assert hierarchical_s(CollectiveKind.SEND, S, ranks(2, 4)) is None


def test_the_least_by_hand():
    assert least_s(ALL_REDUCE, S, ranks(1, 8)) == pytest.approx(2 * 7 / 8 * 20e-3)
    # 2 * 1 / 2 * 8 GB / 4 ports of 50 GB/s = 40 ms; 2 * 7 / 8 * 8 GB over link and port together = 31 ms
    assert least_s(ALL_REDUCE, S, ranks(2, 4)) == pytest.approx(40e-3)
    # 16 ports: 10 ms; 2 * 31 / 32 * 8 GB / 450 GB/s = 34 ms
    assert least_s(ALL_REDUCE, S, ranks(2, 16)) == pytest.approx(2 * 31 / 32 * S / 450e9)
    # three of four nodes' parts reach each node: 6 GB over 4 ports
    assert least_s(ALL_GATHER, S, ranks(4, 4)) == pytest.approx(30e-3)
    assert least_s(ALL_TO_ALL, S, ranks(4, 4)) == pytest.approx(120e-3)  # 6 GB over each port
    assert least_s(CollectiveKind.SEND, S, ranks(2, 1)) == pytest.approx(160e-3)
    assert least_s(CollectiveKind.SEND, S, ranks(2, 4)) == pytest.approx(S / 450e9)  # both may be on one node


def test_switches_that_add_save_an_all_reduce_half():
    adding = replace(QUIET, link_adds=True, network_adds=True)
    assert least_s(ALL_REDUCE, S, ranks(1, 8, adding)) == pytest.approx(20e-3)
    assert least_s(ALL_REDUCE, S, ranks(8, 1, adding)) == pytest.approx(160e-3)
    assert least_s(ALL_REDUCE, S, ranks(8, 1)) == pytest.approx(2 * 7 / 8 * 160e-3)
    assert least_s(ALL_GATHER, S, ranks(1, 8, adding)) == least_s(ALL_GATHER, S, ranks(1, 8))


def test_what_is_not_known_bounds_nothing_and_no_algorithm_is_timed():
    no_link, no_port = replace(QUIET, link_bytes_per_s=None), replace(QUIET, network_bytes_per_s=None)
    assert least_s(ALL_REDUCE, S, ranks(1, 8, no_link)) == 0
    assert least_s(ALL_REDUCE, S, ranks(2, 8, no_port)) == 0
    assert least_s(ALL_REDUCE, S, ranks(2, 4, no_link)) == pytest.approx(40e-3)
    for algorithm in ALGORITHMS:
        assert isnan(algorithm(ALL_REDUCE, S, ranks(1, 8, no_link)))
        assert isnan(algorithm(ALL_REDUCE, S, ranks(2, 8, no_port)))
        assert algorithm(ALL_REDUCE, S, ranks(2, 1, no_link)) > 0  # a rank alone on its node needs no link
    assert isnan(ring_s(ALL_TO_ALL, S, ranks(2, 8, no_port)))


# -- properties ------------------------------------------------------------------------------------------------------


@given(KINDS, SIZES, NODES, HERE, CLUSTERS)
def test_nothing_beats_the_bound(kind, size, nodes, here, cluster):
    topology = ranks(nodes, here, cluster)
    bound = least_s(kind, size, topology)
    assert 0 <= bound < inf
    found = [seconds for algorithm in ALGORITHMS if (seconds := algorithm(kind, size, topology)) is not None]
    assert bound <= min(found) * (1 + 1e-12)
    assert fastest_s(kind, size, topology) == min(found)
    assert least_s(kind, size, replace(topology, interconnect=cluster.where_switches_add)) <= bound * (1 + 1e-12)


@given(KINDS, SIZES, SIZES, NODES, HERE, CLUSTERS)
def test_more_bytes_take_no_less(kind, size, more, nodes, here, cluster):
    topology = ranks(nodes, here, cluster)
    for algorithm in (*ALGORITHMS, fastest_s, least_s):
        less, longer = (algorithm(kind, each, topology) for each in (size, size + more))
        assert less is longer is None or less <= longer * (1 + 1e-12)


@given(KINDS, SIZES, CLUSTERS)
def test_one_rank_takes_no_time(kind, size, cluster):
    times = [algorithm(kind, size, ranks(1, 1, cluster)) for algorithm in (*ALGORITHMS, fastest_s, least_s)]
    assert {seconds for seconds in times if seconds is not None} == {0}


@given(KINDS, SIZES, HERE, CLUSTERS)
def test_in_one_node_a_hierarchy_is_a_ring(kind, size, here, cluster):
    for topology in (ranks(1, here, cluster), ranks(here, 1, replace(cluster, link_bytes_per_s=2e12))):
        seconds = hierarchical_s(kind, size, topology)
        assert seconds is None or seconds == pytest.approx(float(ring_s(kind, size, topology)))


@given(st.integers(2, 1024), SIZES)
def test_trees_beat_rings_by_latency_and_lose_by_bytes(here, size):
    slow = ranks(1, here, replace(CLUSTER, network_bytes_per_s=None))
    assert tree_s(ALL_REDUCE, 0, slow) == pytest.approx(2e-6 * log2(here))
    assert tree_s(ALL_REDUCE, 0, slow) <= ring_s(ALL_REDUCE, 0, slow) * (1 + 1e-12)
    assert tree_s(ALL_REDUCE, size, ranks(1, here)) >= ring_s(ALL_REDUCE, size, ranks(1, here))


@given(KINDS, st.lists(st.tuples(SIZES, NODES, HERE), min_size=1, max_size=20), CLUSTERS)
def test_many_at_once_are_as_one_by_one(kind, asked, cluster):
    sizes, nodes, here = (np.array(column) for column in zip(*asked, strict=True))
    for algorithm in (*ALGORITHMS, fastest_s, least_s):
        together = algorithm(kind, sizes, ranks(nodes, here, cluster))
        alone = [algorithm(kind, size, ranks(n, g, cluster)) for size, n, g in asked]
        assert (together is None and set(alone) == {None}) or together == pytest.approx(np.array(alone, dtype=float))


@given(KINDS, st.integers(1, 1024))
def test_a_rank_sends_no_more_than_a_link_carries(kind, size):
    assert 0 <= sent_share(kind, size) <= bus_factor(kind, size)


# -- where ranks are -------------------------------------------------------------------------------------------------


def test_a_group_s_nodes_are_evenly_filled():
    topology = QUIET.joining(RankGroup(size=9, nodes=2))
    assert (topology.nodes, topology.ranks_per_node, topology.ranks) == (2, 4.5, 9)
    assert QUIET.joining(RankGroup(size=0)).ranks == 1


@given(st.lists(st.integers(1, 8), min_size=2, max_size=6), SIZES, CLUSTERS)
def test_the_bound_holds_however_uneven_the_nodes_are(filled, size, cluster):
    """What must leave the least filled node, over its own ports."""
    group = RankGroup(size=sum(filled), nodes=len(filled))
    fewest = min(filled)
    elsewhere = (group.size - fewest) / group.size
    least = {ALL_GATHER: elsewhere / fewest, ALL_TO_ALL: elsewhere, CollectiveKind.BROADCAST: 1 / fewest}
    for kind, share in least.items():
        only_ports = cluster.joining(group)
        only_ports = replace(only_ports, interconnect=replace(cluster, link_bytes_per_s=None))
        if min(filled) == max(filled) == 1:
            continue  # without links, the ports carry everything: other tests have that
        assert least_s(kind, size, only_ports) <= share * size / cluster.network_bytes_per_s * (1 + 1e-12)


def test_links_that_join_nodes_make_them_one():
    rack = Interconnect(link_bytes_per_s=900e9, link_ranks=72).in_the_best_network
    whole = rack.joining(RankGroup(size=72, nodes=18))
    assert least_s(ALL_GATHER, S, whole) == pytest.approx(71 / 72 * S / 900e9)
    assert rack.joining(RankGroup(size=144, nodes=36)).nodes == 2
    assert rack.joining(RankGroup(size=144)).nodes == 1


def test_a_network_that_nobody_described_is_the_fastest_there_is():
    best = Interconnect(link_bytes_per_s=LINK).in_the_best_network
    assert (best.network_bytes_per_s, best.network_known, best.network_adds) == (100e9, False, True)
    assert least_s(ALL_REDUCE, S, ranks(8, 1, best)) == pytest.approx(80e-3)  # S over 100 GB/s, once


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan")])
def test_a_speed_is_positive(speed):
    with pytest.raises(ValueError, match="give a positive number"):
        Interconnect(network_bytes_per_s=speed)
