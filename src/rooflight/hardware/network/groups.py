"""The ranks that take part in a collective, and how the signature of its op keeps them."""

from __future__ import annotations

from dataclasses import dataclass

from rooflight.hardware.network.collectives import CollectiveKind
from rooflight.records.quantity import count_of
from rooflight.records.signature import AttributeValue, OpSignature

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class RankGroup:
    """A process group: how many ranks (0: not known), on how many nodes (1 also where that is unknown), which of the
    world's ranks (empty where unknown), torch's name for it, and its user's ("mesh_tp").

    Raises ValueError for a negative size and for less than one node.
    """

    size: int
    nodes: int = 1
    ranks: tuple[int, ...] = ()
    name: str = ""
    description: str = ""

    def __post_init__(self) -> None:
        if self.size < 0 or self.nodes < 1:
            raise ValueError(f"a group of {count_of(self.size, 'rank')} cannot be on {count_of(self.nodes, 'node')}")

    @staticmethod
    def of(op: OpSignature) -> RankGroup:
        """The group that the attributes of a collective's signature describe. What they lack is unknown."""
        size, nodes = op.attribute("group_size"), op.attribute("group_nodes")
        ranks = op.attribute("group_ranks")
        return RankGroup(
            size=size if isinstance(size, int) and size > 0 else 0,
            nodes=nodes if isinstance(nodes, int) and nodes > 1 else 1,
            ranks=tuple(rank for rank in ranks if isinstance(rank, int)) if isinstance(ranks, tuple) else (),
            name=str(op.attribute("group_name", "")),
            description=str(op.attribute("group_description", "")),
        )

    @property
    def attributes(self) -> tuple[tuple[str, AttributeValue], ...]:
        """What a signature keeps: ``group_size``, where there are several ``group_nodes``, and where they are known
        ``group_ranks``, ``group_name``, which is one group's alone in its process, and ``group_description``.
        """
        known: dict[str, AttributeValue] = {
            "group_nodes": self.nodes if self.nodes > 1 else 0,
            "group_ranks": self.ranks,
            "group_name": self.name,
            "group_description": self.description,
        }
        return ("group_size", self.size), *((name, value) for name, value in known.items() if value)

    @property
    def ranks_per_node(self) -> float:
        """Ranks on a node, on average."""
        return self.size / self.nodes

    @property
    def label(self) -> str:
        """Such as ``mesh_tp: 0, 4, 8 … 28``."""
        shown = [str(rank) for rank in self.ranks]
        if len(shown) > _SHOWN:
            shown = [*shown[:3], f"… {shown[-1]}"]
        ranks = ", ".join(shown).replace(", …", " …") if shown else count_of(self.size, "rank")
        return f"{self.description}: {ranks}" if self.description else ranks

    def taking_part(self, kind: CollectiveKind) -> RankGroup:
        """The ranks of a group between which a collective moves bytes: two of a send or a receive, on two nodes where
        the group is on several; otherwise all of them, at least one per node.
        """
        if kind in (CollectiveKind.SEND, CollectiveKind.RECEIVE):
            return RankGroup(size=2, nodes=min(self.nodes, 2))
        return RankGroup(size=max(self.size, self.nodes), nodes=self.nodes)
