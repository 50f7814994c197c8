"""Names of attributes that tell of a serving engine's op what its arguments do not: an engine keeps it in its state.

A trace's annotations, the caches that other ops write, names of kernels and a model's config tell it.
"""

from __future__ import annotations

from typing import Final

KV_TOKENS: Final = "kv_tokens"
"""Keys that all sequences of an attention call have together, those of its own tokens included; the least, where that
is all that is known."""

VISIBLE_PAIRS: Final = "visible_pairs"
"""Pairs of a query and a key that it sees, of all sequences of an attention call, for one head; the least likewise."""

KV_WIDTH: Final = "kv_width"
"""Numbers that one token's key has in the cache, all heads of this rank together."""

CACHE_DTYPE: Final = "cache_dtype"
"""The dtype of the cache of keys and values."""

LEAST_PAIRS: Final = "least_pairs"
"""True: of packed sequences of unknown lengths the least pairs count, those of equal lengths. A trace has times, which
no bound may exceed."""

HIDDEN_SIZE: Final = "hidden_size"
"""The width of a model's tokens, without padding."""

EXPERT_WEIGHTS: Final = "expert_weights"
"""The weights of an expert, the part of this rank."""

EXPERTS_PER_TOKEN: Final = "experts_per_token"
"""How many experts a token goes to."""

EXPERT_BITS: Final = "expert_bits"
"""Bits of one weight of an expert."""

PRODUCT_DTYPE: Final = "product_dtype"
"""The dtype of the numbers multiplied on the matrix unit."""
