"""Block masks of FlexAttention as releases of torch pass them."""

from __future__ import annotations

import torch
from torch.nn.attention.flex_attention import _identity, create_block_mask

from rooflight.sources.capture.record.masks import hidden_by_blocks


def test_masks_of_older_releases_have_fewer_fields():
    """torch 2.11 passes two lengths, eight tables, two block sizes and the function: on an H100 nothing was hidden."""
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 256, 256, device="cpu").as_tuple()
    older = (*mask[:10], *mask[-3:])
    x = torch.empty(1, 1, 256, 8)
    found = [hidden_by_blocks((x, x, x, _identity, each), lambda table: table) for each in (mask, older)]
    assert found[0] == found[1]
    ((name, (hidden, every, *_)),) = found[0]
    assert (name, hidden, every) == ("hidden", 256 * 255 // 2, 256**2)
