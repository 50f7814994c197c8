"""Kinds of calls: what a call's arguments have in common with those of other calls, the sizes in which they differ, and
what it returned. Which sizes change is marked, so that code is compiled for all of them at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch

Kind = tuple[Any, ...]
"""All of a call that a compiler makes other code for, but for sizes: structure, dtypes, ranks, devices, modes."""

Mode = tuple[bool, bool, bool]
"""Whether gradients are recorded, whether products are of lower precision (autocast), whether the module trains."""

_DEPTH: Final = 4
_GENERAL: Final = 2
"""From this size on, code for one size may do for others."""
_LONG: Final = 64  # items of a list that are looked at
_TRANSPARENT: Final = (int, float, tuple, list, dict)
_DEEP: Final = 6
_MOST: Final = 512
"""Tensors inside of objects that are looked at, such as the keys and values of a cache's layers."""


def call_mode(module: torch.nn.Module | None) -> Mode:
    """The modes that a call is made in."""
    return (
        torch.is_grad_enabled(),
        torch.is_autocast_enabled() or torch.is_autocast_enabled("cpu"),
        module is not None and module.training,
    )


def mode_of(kind: Kind) -> Mode:
    """The modes that calls of a kind are made in."""
    grad, autocast, training = kind[:3]
    return grad, autocast, training


def call_kind(
    args: tuple[Any, ...], kwargs: dict[str, Any], module: torch.nn.Module | None
) -> tuple[Kind, tuple[Any, ...]]:
    """The kind of a call, and its sizes: the shapes of its tensors and its numbers, in the order of its arguments."""
    kind, sizes, _ = _parts(args, kwargs)
    return (*call_mode(module), *kind), tuple(sizes)


def _parts(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], list[Any], list[torch.Tensor | None]]:
    parts: tuple[list[Any], list[Any], list[torch.Tensor | None]] = [], [], []
    for value in args:
        _add(value, *parts, _DEPTH)
    for name in kwargs if len(kwargs) < 2 else sorted(kwargs):
        parts[0].append(name)
        _add(kwargs[name], *parts, _DEPTH)
    return parts


def _add(value: Any, kind: list[Any], sizes: list[Any], tensors: list[torch.Tensor | None], depth: int) -> None:
    of = type(value)
    if isinstance(value, torch.Tensor):
        # compilers make other code for sizes of 0 and 1
        short = tuple([size if size < _GENERAL else None for size in value.shape])
        kind += (value.dtype, short, value.device, value.requires_grad)
        sizes.append(tuple(value.shape))
        tensors.append(value)
    elif value is None or of is bool or of is str:
        kind.append(value)
    elif of is int or of is float:
        kind.append(of)
        sizes.append(value)
        tensors.append(None)
    elif depth and isinstance(value, (list, tuple)):
        kind += (of, len(value))
        for each in value[:_LONG]:
            _add(each, kind, sizes, tensors, depth - 1)
    elif depth and of is dict:
        kind += (of, len(value))
        for name in list(value)[:_LONG]:
            kind.append(str(name))
            _add(value[name], kind, sizes, tensors, depth - 1)
    else:
        kind.append(of)


def tensors_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor | None]:
    """The tensors of a call by their place among its sizes; None for a number."""
    return _parts(args, kwargs)[2]


def numbers_vary(sizes: Sequence[tuple[Any, ...]]) -> bool:
    """Whether calls of a kind, of these sizes, differ in numbers, which cannot be marked as dynamic."""
    return len(sizes) > 1 and any(
        not isinstance(size, tuple) and any(each[place] != size for each in sizes)
        for place, size in enumerate(sizes[0][: min(map(len, sizes))])
    )


def note_inside(
    inside: list[dict[str, tuple[int, ...]]], key: Kind, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Add the shapes of tensors inside of objects, such as KV caches, which are no part of a call's sizes, if they are
    new.
    """
    if any(isinstance(part, type) and part not in _TRANSPARENT for part in key):
        shapes = {path: tuple(tensor.shape) for path, tensor in _inside(args, kwargs)}
        if shapes not in inside:
            inside.append(shapes)


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

    yield from walk(args, "", _DEEP, False)
    yield from walk(kwargs, "", _DEEP, False)


def mark_dynamic(
    sizes: Sequence[tuple[Any, ...]],
    inside: Sequence[dict[str, tuple[int, ...]]],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Mark as dynamic the dimensions of arguments, and of tensors in objects, in which calls of their kind differed, by
    the sizes and the shapes inside of objects of other calls.
    """
    tensors = tensors_of(args, kwargs)
    for other in sizes:
        for tensor, shape in zip(tensors, other, strict=False):
            if tensor is not None and isinstance(shape, tuple):
                _mark(tensor, shape)
    for path, found in _inside(args, kwargs) if inside else ():
        for shapes in inside:
            _mark(found, shapes.get(path, ()))


def _mark(tensor: torch.Tensor, other: tuple[int, ...]) -> None:
    for dim, (size, one) in enumerate(zip(tensor.shape, other, strict=False)):
        if one != size:
            torch._dynamo.maybe_mark_dynamic(tensor, dim)


def passes_back(out: Any) -> bool:
    """Whether a backward pass may follow: a result, or a part of it, requires gradients."""
    if isinstance(out, torch.Tensor):
        return out.requires_grad
    if isinstance(out, dict):
        return any(passes_back(each) for each in out.values())
    return isinstance(out, (list, tuple)) and any(passes_back(each) for each in out)


def synchronize(out: Any) -> None:
    """Wait for the GPU, if the result is there."""
    first = out[0] if isinstance(out, (list, tuple)) and out else out
    if isinstance(first, torch.Tensor) and first.is_cuda:
        torch.cuda.synchronize()
