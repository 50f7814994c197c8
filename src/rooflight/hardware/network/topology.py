"""Where the ranks of a group are, and what joins them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from rooflight.hardware.network.groups import RankGroup

if TYPE_CHECKING:
    from rooflight.hardware.network.collectives import Number

FASTEST_PORT_BYTES_PER_S: Final = 100e9
"""What a GPU can send to other nodes at most: a port of 800 Gbit/s, one direction, as in ConnectX-8 and Quantum-X800
(NVIDIA datasheets, 2024); no node has more than one for each of its GPUs."""
FASTEST_PORT: Final = "the fastest port there is, 800 Gbit/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interconnect:
    """How fast the ranks of a cluster reach each other; bytes/s of one rank in one direction, None where unknown.

    ``link_bytes_per_s`` joins the ranks of a node, and of up to ``link_ranks`` ranks on several nodes where a link does
    that (NVLink in a rack of 72). ``network_bytes_per_s`` is a rank's port to other nodes, ``network_source`` where
    that figure is from; ``network_known`` is False of an upper bound that stands in for a network nobody described.
    Where switches ``add`` what passes them (NVLink SHARP, SHARP), an all-reduce sends each byte once. Latencies are
    seconds a hop.

    Raises ValueError for a speed that is not positive.
    """

    link_bytes_per_s: float | None = None
    network_bytes_per_s: float | None = None
    network_source: str = ""
    network_known: bool = True
    link_ranks: int = 0
    link_adds: bool = False
    network_adds: bool = False
    link_latency_s: float = 0.0
    network_latency_s: float = 0.0

    def __post_init__(self) -> None:
        for name, speed in (("link", self.link_bytes_per_s), ("network", self.network_bytes_per_s)):
            if speed is not None and not speed > 0:
                raise ValueError(f"{name}_bytes_per_s is {speed}: give a positive number, or None where it is unknown")

    @property
    def in_the_best_network(self) -> Interconnect:
        """The same in a cluster whose network is unknown: one ``FASTEST_PORT`` a GPU, in switches that add."""
        return replace(
            self,
            network_bytes_per_s=FASTEST_PORT_BYTES_PER_S,
            network_source=FASTEST_PORT,
            network_known=False,
            network_adds=True,
        )

    @property
    def where_switches_add(self) -> Interconnect:
        """The same with switches that add everywhere: what not even they can beat."""
        return replace(self, link_adds=True, network_adds=True)

    def joining(self, group: RankGroup) -> Topology:
        """How this joins the ranks of a group: its nodes evenly filled, and those that one link joins taken as one."""
        size, nodes = int(group.size), int(group.nodes)
        if self.link_ranks and size:
            nodes = min(nodes, -(-size // self.link_ranks))
        return Topology(nodes=nodes, ranks_per_node=max(size, nodes) / nodes, interconnect=self)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Topology:
    """Ranks on nodes, as many on each (a mean where they are unevenly spread), and what joins them. ``nodes`` and
    ``ranks_per_node`` may be arrays with an entry for each of many groups.
    """

    nodes: Number
    ranks_per_node: Number
    interconnect: Interconnect

    @property
    def ranks(self) -> Number:
        """Ranks in all."""
        return self.nodes * self.ranks_per_node
