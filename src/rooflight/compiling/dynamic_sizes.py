"""Which sizes of a loop's calls change, so that code is compiled for all of them at once."""

from __future__ import annotations

from typing import Any, Final

import torch

from rooflight.compiling.call_kinds import Kind, tensors_of, varying_dims
from rooflight.compiling.hot_seen import CallKind

_TRANSPARENT: Final = (int, float, tuple, list, dict)


def varies_inside(kind: CallKind, key: Kind) -> bool:
    """Whether calls of a kind differ in what cannot be marked as dynamic: numbers, and tensors inside of objects."""
    if len(kind.sizes) < 2:
        return False
    first = kind.sizes[0]
    numbers = any(
        not isinstance(first[place], tuple) and any(sizes[place] != first[place] for sizes in kind.sizes)
        for place in range(min(map(len, kind.sizes)))
    )
    return numbers or any(isinstance(part, type) and part not in _TRANSPARENT for part in key)


def mark(kind: CallKind, sizes: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Mark the dimensions of the arguments in which calls of this kind differed as dynamic."""
    dims: dict[int, set[int]] = {}
    for other in kind.sizes:
        for place, differing in varying_dims(sizes, other).items():
            dims.setdefault(place, set()).update(differing)
    tensors = tensors_of(args, kwargs)
    for place, differing in dims.items():
        tensor = tensors[place] if place < len(tensors) else None
        for dim in differing if tensor is not None else ():
            torch._dynamo.maybe_mark_dynamic(tensor, dim)
