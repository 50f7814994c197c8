"""Process groups: what a signature says of the group that a collective ran in."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch

from rooflight.records.signature import AttributeValue

MOST_RANKS: Final = 64
"""Ranks of a group that a signature lists; a larger group is known by its size and name."""

_UNNAMED: Final = ("", "undefined", "default_pg")


@dataclass(frozen=True, slots=True)
class ProcessGroupFacts:
    """A process group: how many ranks, on how many nodes (0: not known), which of the world's ranks, torch's name for
    it and its user's ("mesh_tp").
    """

    size: int
    nodes: int
    ranks: tuple[int, ...]
    name: str
    description: str

    @property
    def attributes(self) -> tuple[tuple[str, AttributeValue], ...]:
        """What a signature keeps: ``group_size``, where there are several ``group_nodes``, and where they are known
        ``group_ranks`` (of up to 64 ranks), ``group_name``, which is one group's alone in its process, and
        ``group_description``.
        """
        known: list[tuple[str, AttributeValue]] = [("group_size", self.size)]
        if self.nodes > 1:
            known.append(("group_nodes", self.nodes))
        if self.ranks:
            known.append(("group_ranks", self.ranks))
        if self.name:
            known.append(("group_name", self.name))
        if self.description not in _UNNAMED:
            known.append(("group_description", self.description))
        return tuple(known)


_known: WeakKeyDictionary[Any, ProcessGroupFacts] = WeakKeyDictionary()


def group_facts(group: Any) -> ProcessGroupFacts | None:
    """Facts of a group given as torch passes it to an op, by object or name; None when it cannot be told."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    resolve: Any = distributed_c10d._resolve_process_group  # type: ignore[attr-defined]
    try:
        if isinstance(group, str):
            group = resolve(group)
        elif isinstance(group, torch.ScriptObject):
            group = dist.ProcessGroup.unbox(group)
        facts = _known.get(group)
        if facts is None:
            ranks: Any = distributed_c10d._world.pg_group_ranks.get(group, ())
            world = [int(rank) for rank in ranks]
            facts = _known[group] = ProcessGroupFacts(
                size=int(group.size()),
                nodes=_nodes_of(world),
                ranks=tuple(sorted(world)) if len(world) <= MOST_RANKS else (),
                name=str(getattr(group, "group_name", "")),
                description=str(getattr(group, "group_desc", "")),
            )
    except (RuntimeError, TypeError, AttributeError, ValueError):
        return None
    return facts


def _nodes_of(ranks: Sequence[int]) -> int:
    """How many nodes some ranks of the world are on, where torchrun says how many ranks each node has; otherwise 0."""
    a_node = os.environ.get("LOCAL_WORLD_SIZE", "")
    return len({rank // int(a_node) for rank in ranks}) if a_node.isdecimal() and int(a_node) else 0


def place_in_world() -> dict[str, str]:
    """``rank``, ``world_size`` and ``backend`` of this process as a session's environment keeps them; nothing where
    ``torch.distributed`` is not initialised.
    """
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return {}
    return {
        "rank": str(dist.get_rank()),
        "world_size": str(dist.get_world_size()),
        "backend": str(dist.get_backend()),
    }
