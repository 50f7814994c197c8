"""What a call was given, as far as it decides which ops run: shapes and settings, not values."""

from __future__ import annotations

from typing import Any

import torch

_MOST_ITEMS = 64
_DEEPEST = 4


def look_of(value: Any, depth: int = 0) -> Any:
    """Something hashable that is equal for calls of the same shapes. Tensors give shape and dtype, numbers and strings
    themselves, lists, tuples and dicts what they hold; a cache of keys and values gives its length; anything else only
    its type.
    """
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.dtype)
    if value is None or isinstance(value, bool | int | str):
        return value
    if depth >= _DEEPEST:
        return type(value)
    if isinstance(value, list | tuple):
        return tuple(look_of(item, depth + 1) for item in value[:_MOST_ITEMS])
    if isinstance(value, dict):
        return tuple((str(key), look_of(item, depth + 1)) for key, item in list(value.items())[:_MOST_ITEMS])
    length = getattr(value, "get_seq_length", None)  # caches of transformers
    return (type(value), int(length())) if callable(length) else type(value)
