"""How long collectives take by the common algorithms, and the least that any can take.

S bytes of payload (``collectives``), n ranks on N nodes, g = n / N on each, B bytes/s a rank inside a node and P to
other nodes, α latency a hop. Everything takes one payload and group, or arrays of them.

    ring          all-reduce 2(n−1)α + 2(n−1)/n·S/R; all-gather, reduce-scatter, gather, scatter (n−1)α + (n−1)/n·S/R;
                  broadcast, reduce (n−1)α + S/R; send, receive α + S/R, with R = B in a node, min(B, g·P) between nodes
                  all-to-all, each rank to each: (n−1)α + max((g−1)/n·S/B, (n−g)/n·S/P)
    tree          double binary over nodes, and within them: h = log2(N)α + log2(g)α hops
                  all-reduce 2h + 2S/R; broadcast, reduce h + S/R; none for the others
    hierarchical  reduce-scatter within nodes, all-reduce of S/g between them, all-gather within:
                  2(g−1)α + 2(g−1)/g·S/B + 2(N−1)α + 2(N−1)/N·S/(g·P); all-gather and reduce-scatter half of that

Rings: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005. Trees:
Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009. Hierarchical: Cho,
Finkler, Kung, Hunter, "BlueConnect: decomposing all-reduce for deep learning on heterogeneous network hierarchy", 2019.

The bound (``least_s``) holds for every algorithm. In a node it is what a rank must send, over its link. Between nodes
it is the larger of

    what must leave or reach a node, over the ports of its ranks; and
    what a rank must send, over its link and its port together

so that no way of dividing the bytes between links and ports beats it. Where switches add, an all-reduce sends each byte
once: S instead of 2(n−1)/n·S, and S instead of 2(N−1)/N·S out of a node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rooflight.hardware.network.collectives import CollectiveKind, bus_factor, sent_share
from rooflight.hardware.network.topology import Topology

if TYPE_CHECKING:
    from rooflight.hardware.network.collectives import Number

_ONE_TO_ONE = (CollectiveKind.SEND, CollectiveKind.RECEIVE)
_ROOTED = (CollectiveKind.BROADCAST, CollectiveKind.REDUCE)
_SCATTERED = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)


def ring_s(kind: CollectiveKind, payload: Number, topology: Topology) -> Number:
    """Seconds of a ring, of a pairwise exchange for all-to-all. 0 for one rank, NaN where a speed is unknown."""
    ranks = topology.ranks
    steps = 1 if kind in _ONE_TO_ONE else (ranks - 1) * (2 if kind is CollectiveKind.ALL_REDUCE else 1)
    if kind is CollectiveKind.ALL_TO_ALL:
        moving = _pairwise_s(payload, topology)
    else:
        moving = bus_factor(kind, ranks) * payload / _carried_bytes_per_s(topology)
    return _of_several(topology, steps * _hop_s(topology) + moving)


def tree_s(kind: CollectiveKind, payload: Number, topology: Topology) -> Number | None:
    """Seconds of a double binary tree; None for kinds without one. 0 for one rank, NaN where a speed is unknown."""
    if kind is not CollectiveKind.ALL_REDUCE and kind not in _ROOTED:
        return None
    joins = topology.interconnect
    climb_s = (
        np.log2(topology.nodes) * joins.network_latency_s + np.log2(topology.ranks_per_node) * joins.link_latency_s
    )
    trips = 2 if kind is CollectiveKind.ALL_REDUCE else 1
    return _of_several(topology, trips * (climb_s + payload / _carried_bytes_per_s(topology)))


def hierarchical_s(kind: CollectiveKind, payload: Number, topology: Topology) -> Number | None:
    """Seconds of the algorithm that goes through nodes and between them one after the other; None for kinds without
    one. In one node, or with one rank a node, it is the ring. NaN where a speed is unknown.
    """
    if kind is not CollectiveKind.ALL_REDUCE and kind not in _SCATTERED:
        return None
    joins, nodes, here = topology.interconnect, topology.nodes, topology.ranks_per_node
    trips = 2 if kind is CollectiveKind.ALL_REDUCE else 1
    inside_s = (here - 1) * joins.link_latency_s + (here - 1) / here * payload / _speed(joins.link_bytes_per_s)
    between_s = (nodes - 1) * joins.network_latency_s + (nodes - 1) / nodes * payload / here / _speed(
        joins.network_bytes_per_s
    )
    return trips * (np.where(here > 1, inside_s, 0.0) + np.where(nodes > 1, between_s, 0.0))


def fastest_s(kind: CollectiveKind, payload: Number, topology: Topology) -> Number:
    """Seconds of the fastest of the algorithms above, each payload's and group's own."""
    found = [algorithm(kind, payload, topology) for algorithm in (ring_s, tree_s, hierarchical_s)]
    known = np.broadcast_arrays(*(seconds for seconds in found if seconds is not None))
    best: Number = np.minimum.reduce(known)
    return best


def least_s(kind: CollectiveKind, payload: Number, topology: Topology) -> Number:
    """The bound: no algorithm takes less. A link or port of unknown speed bounds nothing: 0 s."""
    joins, ranks = topology.interconnect, topology.ranks
    link, network = _unbounded(joins.link_bytes_per_s), _unbounded(joins.network_bytes_per_s)
    sent = payload * _least_share(kind, ranks, adds=joins.link_adds)
    either_way = payload * _least_share(kind, ranks, adds=joins.link_adds or joins.network_adds)
    ways_out = np.where(topology.ranks_per_node > 1, link + network, network)
    between_s = np.maximum(payload * port_share(kind, topology) / network, either_way / ways_out)
    return _of_several(topology, np.where(topology.nodes > 1, between_s, sent / link))


def port_share(kind: CollectiveKind, topology: Topology) -> Number:
    """What must pass the port of each rank of some node, as a share of S, if the node's ranks share the work evenly.

    A send crosses nodes for sure only where each rank has a node of its own. A rank's part of a gather or scatter need
    not cross: its root may be on the same node.
    """
    nodes, here = topology.nodes, topology.ranks_per_node
    several = nodes > 1
    if kind in (CollectiveKind.GATHER, CollectiveKind.SCATTER, CollectiveKind.RECEIVE, CollectiveKind.BARRIER):
        return 0.0 * several
    if kind is CollectiveKind.SEND:
        return 1.0 * several * (here <= 1)
    if kind is CollectiveKind.ALL_TO_ALL:
        return (nodes - 1) / nodes
    if kind in _SCATTERED:
        return (nodes - 1) / nodes / here
    if kind is CollectiveKind.ALL_REDUCE and not topology.interconnect.network_adds:
        return 2 * (nodes - 1) / nodes / here
    return several / here


def _carried_bytes_per_s(topology: Topology) -> Number:
    """R: what a ring or tree through all ranks carries at one of them, one direction. Between nodes it is no more than
    the ports of a node together, as NCCL runs a ring through each ("multi-rail").
    """
    link, network = _speed(topology.interconnect.link_bytes_per_s), _speed(topology.interconnect.network_bytes_per_s)
    ports = topology.ranks_per_node * network
    # a lone rank of its node reaches the port even where nobody knows its link
    between = np.where(topology.ranks_per_node > 1, np.minimum(link, ports), np.fmin(link, ports))
    return np.where(topology.nodes > 1, between, link)


def _hop_s(topology: Topology) -> Number:
    """Latency of a step that all ranks take at once: that of its slowest hop."""
    joins = topology.interconnect
    return np.where(topology.nodes > 1, joins.network_latency_s, joins.link_latency_s)


def _least_share(kind: CollectiveKind, ranks: Number, *, adds: bool) -> Number:
    share = sent_share(kind, ranks)
    return np.minimum(share, 1.0) if kind is CollectiveKind.ALL_REDUCE and adds else share


def _pairwise_s(payload: Number, topology: Topology) -> Number:
    """An all-to-all's bytes: those for the same node over links, those for others over ports, at once."""
    joins, here, ranks = topology.interconnect, topology.ranks_per_node, topology.ranks
    inside_s = (here - 1) / ranks * payload / _speed(joins.link_bytes_per_s)
    between_s = (ranks - here) / ranks * payload / _speed(joins.network_bytes_per_s)
    return np.maximum(np.where(here > 1, inside_s, 0.0), np.where(topology.nodes > 1, between_s, 0.0))


def _of_several(topology: Topology, seconds: Number) -> Number:
    """Nobody sends anything where there is one rank."""
    return np.where(topology.ranks > 1, seconds, 0.0)[()]  # a number, not an array, of one group


def _speed(known: float | None) -> float:
    return np.nan if known is None else known


def _unbounded(known: float | None) -> float:
    return np.inf if known is None else known
