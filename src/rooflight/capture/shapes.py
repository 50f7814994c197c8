"""The arguments of a call, as far as they decide which ops run: shapes and settings, not values."""

from __future__ import annotations

from typing import Any

import torch

_MOST_ITEMS = 64
_DEEPEST = 4


def look_of(value: Any, depth: int = 0) -> Any:
    """A hashable value that is equal for calls with the same shapes. It has the shape and dtype of a tensor, the value
    of a number or string, the items of a list, tuple or dict, the length of a cache of keys and values; of anything
    else only the type.
    """
    if isinstance(value, torch.Tensor):
        # a nested tensor without a shape still has a number of parts
        shape = value.size(0) if value.is_nested and value.layout is torch.strided else tuple(value.shape)
        return (shape, value.dtype)
    if value is None or isinstance(value, bool | int | str):
        return value
    if depth < _DEEPEST and isinstance(value, list | tuple):
        return tuple(look_of(item, depth + 1) for item in value[:_MOST_ITEMS])
    if depth < _DEEPEST and isinstance(value, dict):
        return tuple((str(key), look_of(item, depth + 1)) for key, item in list(value.items())[:_MOST_ITEMS])
    return (type(value), _length(value)) if hasattr(type(value), "get_seq_length") else type(value)


def _length(cache: Any) -> int | None:
    """The length of a cache of transformers; None for one of fixed size: its length is a tensor, changes no shape, and
    reading it would wait for the device.
    """
    try:
        length = cache.get_seq_length()
    except Exception:
        return None
    return length if isinstance(length, int) else None
