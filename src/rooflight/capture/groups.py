"""Process groups of torch: the ranks of a collective."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch

from rooflight.network.groups import RankGroup

MOST_RANKS: Final = 64
"""Ranks of a group that a signature lists; a larger group is known by its size and name."""

_UNNAMED: Final = ("undefined", "default_pg")
_known: WeakKeyDictionary[Any, RankGroup] = WeakKeyDictionary()


def rank_group(group: Any) -> RankGroup | None:
    """The ranks of a group given as torch passes it to an op, by object or name; None where they are unknown."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    resolve: Any = distributed_c10d._resolve_process_group  # type: ignore[attr-defined]
    try:
        if isinstance(group, str):
            group = resolve(group)
        elif isinstance(group, torch.ScriptObject):
            group = dist.ProcessGroup.unbox(group)
        found = _known.get(group)
        if found is None:
            found = _known[group] = _read(group, distributed_c10d._world.pg_group_ranks.get(group, ()))
    except (RuntimeError, TypeError, AttributeError, ValueError):
        return None
    return found


def _read(group: Any, ranks: Any) -> RankGroup:
    world = sorted(int(rank) for rank in ranks)
    description = str(getattr(group, "group_desc", ""))
    return RankGroup(
        size=int(group.size()),
        nodes=_nodes_of(world),
        ranks=tuple(world) if len(world) <= MOST_RANKS else (),
        name=str(getattr(group, "group_name", "")),
        description="" if description in _UNNAMED else description,
    )


def _nodes_of(ranks: Sequence[int]) -> int:
    """The number of nodes of some ranks, if torchrun has set how many ranks each node has; otherwise 1."""
    a_node = os.environ.get("LOCAL_WORLD_SIZE", "")
    return len({rank // int(a_node) for rank in ranks}) or 1 if a_node.isdecimal() and int(a_node) else 1


def place_in_world() -> dict[str, str]:
    """``rank``, ``world_size`` and ``backend`` of this process as a session's environment keeps them; empty if
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
