"""What one call of a collective moves, and among whom."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rooflight.network import collectives
from rooflight.network.collectives import CollectiveKind
from rooflight.network.groups import RankGroup
from rooflight.network.topology import Interconnect


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """One call: S as ``collectives`` counts it, among a group of known size."""

    kind: CollectiveKind
    payload_bytes: int
    group: RankGroup

    @property
    def bytes_sent(self) -> int:
        """What one rank sends, one direction, where only ranks add and copy."""
        return collectives.bytes_sent(self.kind, self.payload_bytes, self.group.size)

    @property
    def between_ends(self) -> Traffic:
        """The same among the ranks that take part: a send is between two, on two nodes where its group has several."""
        return replace(self, group=self.group.taking_part(self.kind))

    def least_s(self, interconnect: Interconnect) -> float:
        """The bound of the call: nothing beats it. A speed that it needs and nobody knows bounds nothing: 0 s."""
        from rooflight.network.algorithms import least_s  # needs numpy, which formulas do without

        return self.payload_bytes * float(least_s(self.kind, 1.0, interconnect.joining(self.group)))

    def unknown_speeds(self, interconnect: Interconnect) -> tuple[str, ...]:
        """The speeds that the bound needs and nobody knows."""
        topology = interconnect.joining(self.group)
        missing = []
        if topology.ranks_per_node > 1 and interconnect.link_bytes_per_s is None:
            missing.append("link bandwidth")
        if topology.nodes > 1 and interconnect.network_bytes_per_s is None:
            missing.append("network bandwidth")
        return tuple(missing) if self.bytes_sent else ()
