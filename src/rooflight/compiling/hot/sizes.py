"""Which sizes of a loop's calls change, so that code is compiled for all of them at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch

from rooflight.compiling.hot.calls import Kind, tensors_of, varying_dims
from rooflight.compiling.hot.result import CallKind

_TRANSPARENT: Final = (int, float, tuple, list, dict)
_DEPTH: Final = 6
_MOST: Final = 512
"""Tensors inside of objects that are looked at, such as the keys and values of a cache's layers."""


def numbers_vary(kind: CallKind) -> bool:
    """Whether calls of a kind differ in numbers, which cannot be marked as dynamic."""
    return len(kind.sizes) > 1 and any(
        not isinstance(size, tuple) and any(sizes[place] != size for sizes in kind.sizes)
        for place, size in enumerate(kind.sizes[0][: min(map(len, kind.sizes))])
    )


def note_inside(kind: CallKind, key: Kind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Note the shapes of tensors inside of objects, such as KV caches, which are no part of a call's sizes."""
    if any(isinstance(part, type) and part not in _TRANSPARENT for part in key):
        shapes = {path: tuple(tensor.shape) for path, tensor in _inside(args, kwargs)}
        if shapes not in kind.inside:
            kind.inside.append(shapes)


def _inside(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    left, seen = _MOST, set[int]()

    def walk(value: Any, path: str, depth: int, within: bool) -> Iterator[tuple[str, torch.Tensor]]:
        nonlocal left
        if isinstance(value, torch.Tensor):
            if within and left:
                left -= 1
                yield path, value
            return
        if not depth or id(value) in seen or isinstance(value, (type, torch.nn.Module)):
            return
        if isinstance(value, (list, tuple)):
            parts, inside = dict(enumerate(value)), within
        elif isinstance(value, dict):
            parts, inside = value, within
        else:
            parts, inside = getattr(value, "__dict__", {}), True
        seen.add(id(value))
        for name, part in list(parts.items())[:_MOST]:
            yield from walk(part, f"{path}.{name}", depth - 1, inside)

    yield from walk(args, "", _DEPTH, False)
    yield from walk(kwargs, "", _DEPTH, False)


def mark(kind: CallKind, sizes: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Mark as dynamic the dimensions of arguments, and of tensors in objects, in which calls of this kind differed."""
    dims: dict[int, set[int]] = {}
    for other in kind.sizes:
        for place, differing in varying_dims(sizes, other).items():
            dims.setdefault(place, set()).update(differing)
    tensors = tensors_of(args, kwargs)
    for place, differing in dims.items():
        tensor = tensors[place] if place < len(tensors) else None
        for dim in differing if tensor is not None else ():
            torch._dynamo.maybe_mark_dynamic(tensor, dim)
    for path, found in _inside(args, kwargs) if kind.inside else ():
        for shapes in kind.inside:
            for dim, (one, size) in enumerate(zip(shapes.get(path, ()), found.shape, strict=False)):
                if one != size:
                    torch._dynamo.maybe_mark_dynamic(found, dim)
