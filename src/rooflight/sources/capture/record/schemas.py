"""The kinds of an op's arguments, derived once from its schema."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from itertools import count
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch

from rooflight.hardware.network.groups import RankGroup
from rooflight.records.signature import AttributeValue


class ArgumentKind(IntEnum):
    """How an argument enters a signature."""

    TENSOR = 0
    TENSORS = 1
    ATTRIBUTE = 2
    IGNORED = 3  # floats, scalars, devices, layouts: no cost depends on them
    GROUP = 4  # a process group, by object or name: see capture.groups
    FACTOR = 5  # a number by which an argument is multiplied: if it is 0, the argument is not read
    FLAG = 6  # a number in whose stead another argument would be read: that it was given is all that counts


# These return an alias of their input although their schema does not say so.
_UNANNOTATED_VIEWS: Final = frozenset({"aten::_unsafe_view", "aten::_reshape_copy_alias"})

_TENSOR_LISTS: Final = ("List[Tensor]", "List[Optional[Tensor]]", "List[List[Tensor]]")
_ATTRIBUTES: Final = ("int", "bool", "str", "List[int]", "List[bool]")
_LAYOUT_TYPES: Final = ("Layout", "MemoryFormat")

_numbers = count()


@dataclass(frozen=True, slots=True, eq=False)
class OpSchema:
    """Arguments of one op in schema order, and which of them it mutates.

    ``is_view``: the outputs alias an input and nothing is written, so strides, storages and settings do not matter.
    ``returns_new``: some output is not one of the arguments it mutates.
    Each op has one schema, equal to itself alone.
    """

    name: str
    names: tuple[str, ...]
    kinds: tuple[ArgumentKind, ...]
    defaults: tuple[Any, ...]
    mutated: tuple[int, ...]
    is_view: bool
    returns_new: bool
    number: int = field(default_factory=_numbers.__next__)  # distinguishes the keys of ops

    def positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments in schema order, keywords and defaults filled in."""
        if not kwargs and len(args) == len(self.names):
            return args
        rest = zip(self.names[len(args) :], self.defaults[len(args) :], strict=True)
        return (*args, *(kwargs.get(name, default) for name, default in rest))


@cache
def schema_of(func: Any) -> OpSchema:
    """The schema of an OpOverload. A higher-order operator has no schema: all its tensors count, nothing else."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return OpSchema(f"higher_order::{func.name()}", (), (), (), (), is_view=False, returns_new=True)
    arguments = schema.arguments
    writes = [bool(a.alias_info and a.alias_info.is_write) for a in arguments]
    aliases = [r.alias_info is not None for r in schema.returns]
    return OpSchema(
        name=schema.name,
        names=tuple(a.name for a in arguments),
        kinds=tuple(_kind_in(schema.name, a, arguments) for a in arguments),
        defaults=tuple(a.default_value for a in arguments),
        mutated=tuple(index for index, write in enumerate(writes) if write),
        is_view=(any(aliases) and not any(writes)) or schema.name in _UNANNOTATED_VIEWS,
        returns_new=not all(aliases),
    )


def _kind_in(name: str, argument: Any, arguments: Sequence[Any]) -> ArgumentKind:
    if name == "aten::bernoulli" and argument.name == "p" and str(argument.type) == "float":
        return ArgumentKind.FLAG
    return ArgumentKind.FACTOR if _is_factor(argument, arguments) else _kind(argument)


def _is_factor(argument: Any, arguments: Sequence[Any]) -> bool:
    """Whether it is a factor of beta * input + alpha * (product), as BLAS defines it, or of input + alpha * other."""
    if argument.name not in ("alpha", "beta") or str(argument.type) != "number":
        return False
    names = {a.name for a in arguments}
    return {"alpha", "beta"} <= names or any(a.name == "other" and str(a.type) == "Tensor" for a in arguments)


def is_zero(factor: Any) -> bool:
    """Whether a number that a program passed is certainly 0."""
    return isinstance(factor, int | float | complex) and factor == 0


def _kind(argument: Any) -> ArgumentKind:
    text = str(argument.type)
    text = text.removeprefix("Optional[").removesuffix("]") if text.startswith("Optional[") else text
    if text in _TENSOR_LISTS:
        return ArgumentKind.TENSORS
    if text == "Tensor":
        return ArgumentKind.TENSOR
    if text.endswith("c10d.ProcessGroup") or argument.name == "group_name":
        return ArgumentKind.GROUP
    if text in _ATTRIBUTES and not any(layout in str(argument.real_type) for layout in _LAYOUT_TYPES):
        return ArgumentKind.ATTRIBUTE
    return ArgumentKind.IGNORED


def attribute_value(value: Any) -> AttributeValue:
    """A setting in the form that signatures keep: symbolic ints as ints, dtypes by name, lists as tuples."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, list | tuple):
        return tuple(bool(item) if isinstance(item, bool) else known_int(item) for item in value)
    return known_int(value)


def known_int(size: Any) -> int:
    """A size as an int: of a symbolic one the value with which it was traced, or 0 if it depends on data, so that a
    bound stays a bound.

    ``int(size)`` would fix the traced program to this value, or raise.
    """
    if isinstance(size, torch.SymInt):
        return int(size.node.hint or 0)
    return int(size)


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
