"""A call of an op, as torch hands it to a dispatch mode."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map


class OpCall:
    """``op`` with its arguments. ``tensors`` are those among them, also in lists."""

    __slots__ = ("args", "kwargs", "op", "tensors")

    def __init__(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.op, self.args, self.kwargs = op, args, kwargs
        self.tensors = tensors_of((*args, *kwargs.values()) if kwargs else args)

    def run(self) -> Any:
        """What the op makes."""
        return self.op(*self.args, **self.kwargs)

    def mapped(self, change: Callable[[Any], Any]) -> OpCall:
        """The call with other leaves of its arguments."""
        return OpCall(self.op, *tree_map(change, (self.args, self.kwargs)))

    def with_options(self, **kwargs: Any) -> OpCall:
        """The call with these keyword arguments instead."""
        return OpCall(self.op, self.args, {**self.kwargs, **kwargs})

    def option(self, name: str, place: int, default: Any = None) -> Any:
        """An argument that is given by name, or at a place."""
        return self.kwargs.get(name, self.args[place] if place < len(self.args) else default)

    def writes(self, names: Iterable[tuple[int, str]]) -> list[torch.Tensor]:
        """The tensors of these arguments, each with its place."""
        given = [self.option(name, place) for place, name in names]
        return [each for each in tree_leaves(given) if isinstance(each, torch.Tensor)]


def tensors_of(values: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors among them, and in those that are lists."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif type(value) in (list, tuple):
            found += [each for each in value if isinstance(each, torch.Tensor)]
    return found


def written_by(op: Any) -> list[tuple[int, str]]:
    """Places and names of the arguments that an op writes, as its schema says."""
    arguments = enumerate(op._schema.arguments)
    return [(place, each.name) for place, each in arguments if each.alias_info is not None and each.alias_info.is_write]
