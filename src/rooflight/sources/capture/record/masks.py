"""What masks hide: the block masks of FlexAttention, and those whose values show padding, which are data: no bound is
lower for them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor

from rooflight.records.signature import HIDDEN, PADDED, SCORED, AttributeValue

FLEX: Final = "higher_order::flex_attention"
_MOST_PAIRS: Final = 1 << 24  # that are asked one by one whether they are hidden
_FIELDS: Final = 13  # of a block mask, as the op takes it: torch 2.11 has so many, 2.13 four more before the last three
LOWEST: Final = -1000.0
"""What is added to a score, or put in its place, and leaves nothing of its exponential."""

_MOST_LOOKED_AT: Final = 1 << 22  # of a mask that is looked at

_Attributes = tuple[tuple[str, AttributeValue], ...]
_last: list[tuple[weakref.ref[torch.Tensor], int, object, _Attributes]] = []  # layers share a mask


@contextmanager
def plainly() -> Iterator[None]:
    """Ops in the block are torch's own: no mode sees them."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), torch.no_grad():
        yield


def hidden_by_blocks(args: tuple[Any, ...], values: Callable[[torch.Tensor], torch.Tensor | None]) -> _Attributes:
    """The attribute ``HIDDEN`` of a call; none where ``values``, which returns what a tensor holds, does not know it.

    Of a block that is not full each pair is asked for where these are few; else one counts, the least, and all keys.
    """
    from torch.nn.attention.flex_attention import _identity, noop_mask

    scored = ((SCORED, True),) if callable(args[3]) and args[3] is not _identity else ()
    mask = next((each for each in args if isinstance(each, tuple) and len(each) >= _FIELDS), None)
    if mask is None:
        return scored
    num_queries, num_keys, *tables = mask[:6]
    *_, rows, columns, shows = mask
    if shows is noop_mask:
        return ((HIDDEN, (0, 1, 0, 1, 0)), *scored)
    tables = [table if table is None else values(table) for table in tables]
    partial, full = _listed(*tables[:2]), _listed(*tables[2:])
    if partial is None:
        return scored
    full = torch.zeros_like(partial) if full is None else full
    lengths = [_lengths(*each) for each in ((num_queries, rows, full.shape[-2]), (num_keys, columns, full.shape[-1]))]
    pairs = int((full * lengths[0][:, None] * lengths[1]).sum())
    seen = full.flatten(0, -2).any(0).repeat_interleave(lengths[1])
    entry, head, query, key = partial.nonzero().T[:, :, None, None]
    queries = query * rows + torch.arange(min(rows, num_queries))[:, None]
    keys = key * columns + torch.arange(min(columns, num_keys))
    visible = None
    if key.numel() * queries.shape[1] * keys.shape[2] <= _MOST_PAIRS:
        place = "cpu" if args[0].is_meta else args[0].device
        asked = (entry, head, queries.clamp(max=num_queries - 1), keys.clamp(max=num_keys - 1))
        with suppress(Exception):  # of the program's own function, which may take single numbers only
            visible = shows(*(each.to(place) for each in asked)).cpu()
    if isinstance(visible, FakeTensor):  # of values that are not known
        visible = None
    if visible is None:
        pairs += key.numel()
        seen |= partial.flatten(0, -2).any(0).repeat_interleave(lengths[1])
    else:
        visible = visible & (queries < num_queries) & (keys < num_keys)
        pairs += int(visible.sum())
        seen[keys.expand(visible.shape)[visible]] = True
    every = full[..., 0, 0].numel() * num_queries * num_keys
    return ((HIDDEN, (every - pairs, every, num_keys - int(seen.sum()), num_keys, 0)), *scored)


def _listed(count: torch.Tensor | None, index: torch.Tensor | None) -> torch.Tensor | None:
    """Which blocks [entries, heads, blocks of queries, blocks of keys] a mask lists: ``count`` of each row."""
    if count is None or index is None:
        return None
    first = torch.arange(index.shape[-1]) < count[..., None]
    return torch.zeros_like(index, dtype=torch.bool).scatter_(-1, index.long(), first)


def _lengths(size: int, block: int, blocks: int) -> torch.Tensor:
    return (size - torch.arange(blocks) * block).clamp(0, block)


def may_pad(args: tuple[Any, ...]) -> bool:
    """Whether the first two arguments can be scores and a mask of keys, one way or the other, by their shapes alone."""
    if len(args) < 2 or not all(isinstance(each, torch.Tensor) and not each.is_nested for each in args[:2]):
        return False
    scores, mask = args[:2] if args[0].numel() > args[1].numel() else (args[1], args[0])
    return bool(scores.dim() == mask.dim() > 2 and mask.shape[-2] == 1 and mask.shape[-1] == scores.shape[-1] > 1)


def padded(mask: torch.Tensor, hides: Callable[[torch.Tensor], torch.Tensor]) -> _Attributes:
    """The attribute ``PADDED`` of what is given ``mask`` [..., queries, keys], which ``hides`` maps to the pairs it
    hides; none of a mask without values in the host's memory, or that hides no key.
    """
    if (
        type(mask) is not torch.Tensor
        or mask.device.type != "cpu"
        or mask.layout is not torch.strided
        or mask.dim() < 2
    ):
        return ()
    for last, version, how, found in _last if not mask.is_inference() else ():
        if last() is mask and version == mask._version and how == hides:
            return found
    found = _padding_of(mask, hides)
    if not mask.is_inference():
        _last[:] = [(weakref.ref(mask), mask._version, hides, found)]
    return found


def _padding_of(mask: torch.Tensor, hides: Callable[[torch.Tensor], torch.Tensor]) -> _Attributes:
    with plainly():
        strides = mask.stride()
        shape = [min(size, 1) if not stride else size for size, stride in zip(mask.shape, strides, strict=True)]
        values = mask.as_strided((*shape[:-1], mask.shape[-1]), strides)
        if not values.numel() or values.numel() > _MOST_LOOKED_AT:
            return ()
        kept = (~hides(values).all(-2)).reshape(-1, mask.shape[-1]).sum(1)
        rows, total = len(kept), int(kept.sum())
        if total == rows * mask.shape[-1]:
            return ()
        return ((PADDED, (rows, mask.shape[-1], int(kept.max()), total)),)
