"""Attention over packed sequences, whose lengths are data that a signature does not hold.

Convention: in a recording, T tokens in sequences no longer than ``max_q`` (``max_seqlen_q``) have at the most
T x max_k visible pairs, T (max + 1) / 2 when causal; such counts are ``upper``. In a trace, n sequences have at least
the pairs of n equal ones. Without cumulative lengths the batch is dense and exact.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

from rooflight.costs import registry
from rooflight.costs.cost import OpCost
from rooflight.costs.families.attention import (
    Heads,
    attention_backward,
    attention_forward,
    flash_pairs,
    heads_first,
    sequence_first,
    visible_pairs,
)
from rooflight.costs.families.rules import integer
from rooflight.records import engine_facts
from rooflight.records.signature import OpSignature

formula = partial(registry.formula, error_group="attention_varlen", epilogue=True)

LENGTHS_NOTE = "sequence lengths unknown: all taken as the longest"

EQUAL_NOTE = "sequence lengths unknown: all taken as equal, which is the least"

_CUMULATIVE = ("cum_seq_q", "cu_seqlens_q", "cum_seqlens_q")


def _is_packed(op: OpSignature) -> bool:
    """Whether the batch is one row of sequences; torch passes empty cumulative lengths for a dense batch."""
    return any(tensor.numel for name in _CUMULATIVE for tensor in op.named(name))


def _longest(op: OpSignature, side: str, total: int) -> int:
    """The longest sequence of a packed batch: what the op was given, or all tokens in one."""
    for name in (f"max_{side}", f"max_seqlen_{side}"):
        longest = integer(op, name, 0)
        if longest > 0:
            return min(longest, total)
    return total


def _packed_pairs(op: OpSignature, heads: Heads) -> int:
    """At the most as many pairs as if every sequence were as long as the longest."""
    if op.attribute(engine_facts.LEAST_PAIRS):
        return _least_pairs(op, heads)
    longest_q = _longest(op, "q", heads.num_queries)
    longest_k = _longest(op, "k", heads.num_keys)
    if longest_q == 0:
        return 0
    return -(-heads.num_queries * _pairs(op, longest_q, longest_k) // longest_q)


def _least_pairs(op: OpSignature, heads: Heads) -> int:
    """As many pairs as if every sequence had the same length: unequal ones have more, as the square of a length grows
    faster than the length. Of keys in pages only those of the call's own tokens are certain.
    """
    starts = next(tensor for name in _CUMULATIVE for tensor in op.named(name))
    sequences = max(starts.numel - 1, 1)
    paged = op.input("block_table") is not None
    queries, keys = heads.num_queries // sequences, (heads.num_queries if paged else heads.num_keys) // sequences
    return max(sequences * _pairs(op, queries, keys), heads.num_queries if paged else 0)


def _pairs(op: OpSignature, num_queries: int, num_keys: int) -> int:
    """Visible pairs of one sequence; the efficient kernels say causal by ``custom_mask_type``: 1 top left, 2 bottom."""
    mask_type = integer(op, "custom_mask_type", 0)
    window = integer(op, "window_size", 0)
    if mask_type or window:
        return visible_pairs(
            num_queries,
            num_keys,
            causal=mask_type > 0,
            bottom_right=mask_type == 2,
            left=window - 1 if window > 0 else None,
        )
    return flash_pairs(op, num_queries, num_keys)


def _bias_note(op: OpSignature) -> str:
    unknown = [
        name for name in ("bias", "attn_bias", "seqlen_k", "seqused_k", "block_table") if op.input(name) is not None
    ]
    return f"{', '.join(unknown)} not read" if unknown else ""


def _heads_and_pairs(op: OpSignature, first: int) -> tuple[Heads, int, str]:
    query, key, value = op.inputs[first : first + 3]
    if _is_packed(op):
        # a paged cache holds its keys as [blocks, block size, Hkv, D]
        heads = replace(sequence_first(query, key, value), num_keys=prod(key.shape[:-2]))
        note = EQUAL_NOTE if op.attribute(engine_facts.LEAST_PAIRS) else LENGTHS_NOTE
        return heads, _packed_pairs(op, heads), note
    # cuDNN's ops keep torch's layout for dense batches, the others flash-attn's
    layout = heads_first if op.name.startswith("aten::_cudnn") else sequence_first
    heads = layout(query, key, value)
    return heads, _pairs(op, heads.num_queries, heads.num_keys), _bias_note(op)


@formula(
    "aten::_flash_attention_forward",
    "aten::_efficient_attention_forward",
    "aten::_cudnn_attention_forward",
    "flash_attn::_flash_attn_varlen_forward",
)
def varlen_forward(op: OpSignature) -> OpCost:
    """q [B, Nq, Hq, D] or packed [T, Hq, D], k and v alike."""
    heads, pairs, note = _heads_and_pairs(op, 0)
    return attention_forward(op, heads, pairs, op.inputs[0], note=note)


@formula("aten::_flash_attention_forward_no_dropout_inplace")
def varlen_forward_into(op: OpSignature) -> OpCost:
    """As _flash_attention_forward, the output given first."""
    heads, pairs, note = _heads_and_pairs(op, 1)
    return attention_forward(op, heads, pairs, op.inputs[1], note=note)


@formula(
    "aten::_flash_attention_backward",
    "aten::_efficient_attention_backward",
    "aten::_cudnn_attention_backward",
    "flash_attn::_flash_attn_varlen_backward",
)
def varlen_backward(op: OpSignature) -> OpCost:
    """The output's gradient first, then q, k, v as in the forward op."""
    heads, pairs, note = _heads_and_pairs(op, 1)
    return attention_backward(op, heads, pairs, op.inputs[1], note=note)
