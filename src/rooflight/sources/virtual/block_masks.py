"""Block masks of FlexAttention whose masks have more values than are kept: rows of blocks are asked one after another,
and of the largest masks the corners of blocks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any, Final

import torch

from rooflight.sources.capture.run.hooks import when_imported
from rooflight.sources.virtual.mode import VirtualMode
from rooflight.sources.virtual.values import MOST_INTEGERS

_FLEX: Final = "torch.nn.attention.flex_attention"
_MOST_PAIRS: Final = 1 << 24  # of query and key that are asked one by one
_MADE_BY: Final = "made_by"


def install(mode: VirtualMode) -> None:
    """Let values of block masks be known, for the rest of the process."""
    when_imported(_FLEX, partial(_replace, mode))


def _replace(mode: VirtualMode) -> None:
    flex: Any = sys.modules[_FLEX]
    create, convert = flex.create_mask, flex._convert_mask_to_block_mask

    @wraps(create)
    def create_mask(mod_fn: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        mask: torch.Tensor = create(mod_fn, *args, **kwargs)
        mask.__dict__[_MADE_BY] = mod_fn
        return mask

    @wraps(convert)
    def in_blocks(mask: torch.Tensor, Q_BLOCK_SIZE: int, KV_BLOCK_SIZE: int, **how: Any) -> Any:  # noqa: N803
        found = convert(mask, Q_BLOCK_SIZE=Q_BLOCK_SIZE, KV_BLOCK_SIZE=KV_BLOCK_SIZE, **how)
        shown = mask.__dict__.get(_MADE_BY)
        if shown is None or not mask.is_cuda or mask.numel() <= MOST_INTEGERS:
            return found
        corners = mask.numel() > _MOST_PAIRS
        of_block = (min(2, Q_BLOCK_SIZE), min(2, KV_BLOCK_SIZE)) if corners else (Q_BLOCK_SIZE, KV_BLOCK_SIZE)
        counts = _counts(mode, create, shown, mask, (Q_BLOCK_SIZE, KV_BLOCK_SIZE), of_block)
        if counts is not None:
            if corners:
                size = f"{mask.shape[-2]:,} x {mask.shape[-1]:,}"
                mode.answers.note(f"a block mask of {size}", "by the corners of its blocks")
                if mask.shape[-2] % Q_BLOCK_SIZE:  # a block with padding is not full
                    counts[..., -1, :].clamp_(max=3)
                if mask.shape[-1] % KV_BLOCK_SIZE:
                    counts[..., -1].clamp_(max=3)
            whole = of_block[0] * of_block[1] if how.get("separate_full_blocks") else 0
            mode.values.hold(found[0], (counts > 0) & (counts != whole))
            if found[1] is not None:
                mode.values.hold(found[1], counts == whole)
        return found

    flex.create_mask, flex._convert_mask_to_block_mask = create_mask, in_blocks


def _counts(
    mode: VirtualMode, create: Any, shown: Callable[..., Any], mask: torch.Tensor, block: tuple[int, int],
    of: tuple[int, int],
) -> torch.Tensor | None:  # fmt: skip
    """How many of ``of`` pairs of each ``block`` a mask shows: [B, H, blocks of queries, blocks of keys]; None where
    that is not known. ``of`` is the block, or the places of its corners.
    """
    *outer, queries, keys = mask.shape
    batch, heads = [1, 1, *outer][-2:]
    rows, columns = -(-queries // block[0]), -(-keys // block[1])

    def place(index: Any, size: int, axis: int) -> tuple[Any, Any]:
        """Where a pair stands, and whether that is inside."""
        inner = index % of[axis]
        at = index // of[axis] * block[axis] + (inner if of == block else inner * (block[axis] - 1))
        return at.clamp(max=size - 1), (at < size) | (of != block)

    def asked(first: int, b: Any, h: Any, q: Any, k: Any) -> Any:
        (query, is_query), (key, is_key) = place(q + first, queries, 0), place(k, keys, 1)
        return shown(b, h, query, key) & is_query & is_key

    def parts() -> Iterator[torch.Tensor | None]:
        height = of[0] * max(1, MOST_INTEGERS // (batch * heads * columns * of[1] * of[0]))
        for first in range(0, rows * of[0], height):
            size = min(height, rows * of[0] - first)
            made = create(partial(asked, first), batch, heads, size, columns * of[1], mask.device)
            known = mode.values.of(made)
            yield None if known is None else known.view(batch, heads, -1, of[0], columns, of[1]).sum((3, 5))

    found = []
    for part in parts():
        if part is None:
            return None
        found.append(part)
    return torch.cat(found, 2)
