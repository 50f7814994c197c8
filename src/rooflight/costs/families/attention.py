"""Attention, forward and backward: over sequences of known length, and over packed ones.

Attention over sequences of known length, forward and backward.

Conventions: B batch, Hq query heads, Hkv key and value heads, Nq queries, Nk keys, Dqk and Dv head sizes, P visible
(query, key) pairs of one head. Forward 2 B Hq P (Dqk + Dv) matrix FLOPs, backward 2 B Hq P (3 Dqk + 2 Dv): the scores
are recomputed (2.5x forward when Dqk = Dv), or 2x forward with ``recompute`` false. Vector FLOPs: 5 per pair forward
(softmax), 6 backward (4 for softmax backward, 2 to recompute the exponential). torch's ``is_causal`` aligns the mask
to the top left, flash-attn's ``causal`` to the bottom right. What a mask or a score function hides is data: such
counts are ``upper``. Scores are never stored; the log-sum-exp is, where the op returns it.

Attention over packed sequences, whose lengths are data that a signature does not hold.

Convention: in a recording, T tokens in sequences no longer than ``max_q`` (``max_seqlen_q``) have at the most
T x max_k visible pairs, T (max + 1) / 2 when causal; such counts are ``upper``. In a trace, n sequences have at least
the pairs of n equal ones. Without cumulative lengths the batch is dense and exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from rooflight.costs.cost import Float32Kind, Needs, OpCost
from rooflight.costs.families.matmul import multiply_adds
from rooflight.costs.rules import Family, clamped_sum, flags, integer, read_bytes
from rooflight.records import signature as engine_facts
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import UNSHARED, TensorSpec, distinct_bytes

attention_ops = Family("attention", epilogue=True, float32=Float32Kind.ATTENTION)

FORWARD_VECTOR_FLOPS = 5
BACKWARD_VECTOR_FLOPS = 4
RECOMPUTE_VECTOR_FLOPS = 2

MASK_NOTE = "attention mask taken as all visible"


def visible_pairs(
    num_queries: int,
    num_keys: int,
    *,
    causal: bool = False,
    bottom_right: bool = False,
    left: int | None = None,
    right: int | None = None,
) -> int:
    """How many keys all queries of one head see together.

    Query i stands at key i, or at key i + Nk - Nq where sequences are aligned at their ends (``bottom_right``). It
    sees ``left`` keys before its own and ``right`` after, all of them where None.
    """
    shift = num_keys - num_queries if bottom_right else 0
    if causal:
        right = 0
    stops = num_queries * num_keys if right is None else clamped_sum(shift + right + 1, num_queries, num_keys)
    starts = 0 if left is None else clamped_sum(shift - left, num_queries, num_keys)
    return stops - starts


def hidden_keys(
    num_queries: int,
    num_keys: int,
    *,
    causal: bool = False,
    bottom_right: bool = False,
    left: int | None = None,
    right: int | None = None,
) -> int:
    """How many keys no query of a head sees, and no kernel reads; arguments as ``visible_pairs`` has them."""
    shift = num_keys - num_queries if bottom_right else 0
    if causal:
        right = 0
    stop = num_keys if right is None else max(0, min(num_keys, shift + num_queries + right))
    start = 0 if left is None else max(0, min(stop, shift - left))
    return num_keys - (stop - start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """What one attention call works on; ``count`` is batch entries times query heads."""

    count: int
    num_queries: int
    num_keys: int
    query_size: int
    value_size: int


def heads_first(query: TensorSpec, key: TensorSpec, value: TensorSpec) -> Heads:
    """query [..., Hq, Nq, Dqk], key [..., Hkv, Nk, Dqk], value [..., Hkv, Nk, Dv]: torch's layout."""
    return Heads(
        count=prod(query.shape[:-2]),
        num_queries=query.shape[-2],
        num_keys=key.shape[-2],
        query_size=query.shape[-1],
        value_size=value.shape[-1],
    )


def sequence_first(query: TensorSpec, key: TensorSpec, value: TensorSpec) -> Heads:
    """query [..., Nq, Hq, Dqk], key [..., Nk, Hkv, Dqk], value [..., Nk, Hkv, Dv]: flash-attn's layout."""
    return Heads(
        count=prod(query.shape[:-3]) * query.shape[-2],
        num_queries=query.shape[-3],
        num_keys=key.shape[-3],
        query_size=query.shape[-1],
        value_size=value.shape[-1],
    )


def unread_bytes(op: OpSignature, key: TensorSpec, value: TensorSpec, num_keys: int, hidden: int) -> int:
    """Bytes of so many keys and their values; none where they share memory with more than each other."""
    others = [tensor for tensor in op.inputs if tensor.storage in (key.storage, value.storage)]
    apart = key.storage == value.storage == UNSHARED or len(others) == 2
    return distinct_bytes((key, value)) * hidden // max(1, num_keys) if apart else 0


def attention_forward(
    op: OpSignature, heads: Heads, pairs: int, query: TensorSpec, *, unread: int = 0, note: str = ""
) -> OpCost:
    """Scores (Dqk multiply-adds a pair), softmax, weighted values (Dv multiply-adds a pair). ``unread``: bytes of keys
    and values that no query sees.
    """
    seen = heads.count * pairs
    return OpCost(
        matrix_flops=multiply_adds(seen * (heads.query_size + heads.value_size), query),
        matrix_dtype=query.dtype,
        vector_flops=FORWARD_VECTOR_FLOPS * seen,
        bytes_read=read_bytes(op, "out", "dropout_mask") - unread,
        bytes_written=distinct_bytes(op.outputs[:2]),  # the rest are counters and debug masks
        upper=bool(note),
        note=note,
    )


def attention_backward(
    op: OpSignature, heads: Heads, pairs: int, query: TensorSpec, *, unread: int = 0, note: str = ""
) -> OpCost:
    """dV = P'dO and dP = dO V' (Dv each), dQ = dS K and dK = dS'Q (Dqk each), scores recomputed (Dqk).

    A ``grad_input_mask`` (query, key, value, ...) leaves out what it does not ask for; scores are recomputed anyway.
    """
    wants_query, wants_key, wants_value = flags(op, "grad_input_mask", (True, True, True))[:3]
    recompute = op.attribute("recompute", True) is not False
    through_scores = wants_query or wants_key
    per_pair = heads.query_size * (wants_query + wants_key + recompute) + heads.value_size * (
        wants_value + through_scores
    )
    seen = heads.count * pairs
    return OpCost(
        matrix_flops=multiply_adds(seen * per_pair, query),
        matrix_dtype=query.dtype,
        vector_flops=(BACKWARD_VECTOR_FLOPS + RECOMPUTE_VECTOR_FLOPS * recompute) * seen,
        bytes_read=read_bytes(op, "dq", "dk", "dv") - unread,
        bytes_written=op.output_bytes,
        upper=bool(note),
        note=note,
    )


def mask_note(op: OpSignature) -> str:
    """The note on a call with a mask tensor; none for others."""
    masks = ("attn_mask", "attn_bias")
    return MASK_NOTE if any(tensor.numel for name in masks for tensor in op.named(name)) else ""


@attention_ops(
    "scaled_dot_product_attention _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_fused_attention_overrideable _scaled_dot_product_attention_math "
    "_scaled_dot_product_attention_math_for_mps _triton_scaled_dot_attention",
    needs=Needs.ATTENDED,
)
def sdpa(op: OpSignature) -> OpCost:
    """q [..., Hq, Nq, Dqk], k [..., Hkv, Nk, Dqk], v [..., Hkv, Nk, Dv]; each pair costs Dqk + Dv multiply-adds."""
    query, key, value = op.inputs[:3]
    heads = heads_first(query, key, value)
    causal = bool(op.attribute("is_causal"))
    pairs = visible_pairs(heads.num_queries, heads.num_keys, causal=causal)
    hidden = hidden_keys(heads.num_queries, heads.num_keys, causal=causal)
    unread = unread_bytes(op, key, value, heads.num_keys, hidden)
    return attention_forward(op, heads, pairs, query, unread=unread, note=mask_note(op))


@attention_ops(
    "rooflight::scaled_dot_product_attention_backward _scaled_dot_product_flash_attention_backward "
    "_scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_efficient_attention_backward "
    "_scaled_dot_product_cudnn_attention_backward _scaled_dot_product_fused_attention_overrideable_backward",
)
def sdpa_backward(op: OpSignature) -> OpCost:
    """The output's gradient, q, k, v, the output and its log-sum-exp to dq, dk, dv: 3 Dqk + 2 Dv per pair."""
    query, key, value = op.inputs[1:4]
    heads = heads_first(query, key, value)
    causal = bool(op.attribute("is_causal"))
    pairs = visible_pairs(heads.num_queries, heads.num_keys, causal=causal)
    hidden = hidden_keys(heads.num_queries, heads.num_keys, causal=causal)
    unread = unread_bytes(op, key, value, heads.num_keys, hidden)
    return attention_backward(op, heads, pairs, query, unread=unread, note=mask_note(op))


def _window(op: OpSignature, name: str) -> int | None:
    """A window's reach to one side; flash-attn writes -1 for no limit."""
    value = op.attribute(name)
    return value if isinstance(value, int) and value >= 0 else None


def flash_pairs(op: OpSignature, num_queries: int, num_keys: int) -> int:
    """Visible pairs as flash-attn masks them: aligned at the ends, windows as the op's arguments give them."""
    return visible_pairs(
        num_queries,
        num_keys,
        causal=bool(op.attribute("causal") or op.attribute("is_causal")),
        bottom_right=True,
        left=_window(op, "window_size_left"),
        right=_window(op, "window_size_right"),
    )


def flash_hidden(op: OpSignature, num_queries: int, num_keys: int) -> int:
    """Keys that no query sees, as flash-attn masks them: those that slid out of the window of a decode step."""
    return hidden_keys(
        num_queries,
        num_keys,
        causal=bool(op.attribute("causal") or op.attribute("is_causal")),
        bottom_right=True,
        left=_window(op, "window_size_left"),
        right=_window(op, "window_size_right"),
    )


@attention_ops(
    "flash_attn::_flash_attn_forward aiter::_flash_attn_forward aiter::mha_fwd aiter::fmha_v3_fwd trace::FlashAttnFunc",
)
def flash_attn(op: OpSignature) -> OpCost:
    """q [B, Nq, Hq, D], k and v [B, Nk, Hkv, D], causal from the bottom right."""
    query, key, value = op.inputs[:3]
    heads = sequence_first(query, key, value)
    unread = unread_bytes(op, key, value, heads.num_keys, flash_hidden(op, heads.num_queries, heads.num_keys))
    return attention_forward(op, heads, flash_pairs(op, heads.num_queries, heads.num_keys), query, unread=unread)


@attention_ops("flash_attn::_flash_attn_backward aiter::_flash_attn_backward aiter::mha_bwd aiter::fmha_v3_bwd")
def flash_attn_backward(op: OpSignature) -> OpCost:
    """dout, q, k, v, out, log-sum-exp to dq, dk, dv, which the caller allocated."""
    query, key, value = op.inputs[1:4]
    heads = sequence_first(query, key, value)
    unread = unread_bytes(op, key, value, heads.num_keys, flash_hidden(op, heads.num_queries, heads.num_keys))
    return attention_backward(op, heads, flash_pairs(op, heads.num_queries, heads.num_keys), query, unread=unread)


@attention_ops("higher_order::flex_attention")
def flex_attention(op: OpSignature) -> OpCost:
    """As scaled_dot_product_attention; the block mask is a function, so all pairs are taken as visible."""
    query, key, value = op.inputs[:3]
    heads = heads_first(query, key, value)
    return attention_forward(op, heads, heads.num_queries * heads.num_keys, query, note="block mask not evaluated")


@attention_ops("higher_order::flex_attention_backward")
def flex_attention_backward(op: OpSignature) -> OpCost:
    """query, key, value first, then the output, its log-sum-exp and the gradient."""
    query, key, value = op.inputs[:3]
    heads = heads_first(query, key, value)
    return attention_backward(op, heads, heads.num_queries * heads.num_keys, query, note="block mask not evaluated")


varlen_ops = Family("attention_varlen", epilogue=True)

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


@varlen_ops(
    "_flash_attention_forward _efficient_attention_forward _cudnn_attention_forward "
    "flash_attn::_flash_attn_varlen_forward",
)
def varlen_forward(op: OpSignature) -> OpCost:
    """q [B, Nq, Hq, D] or packed [T, Hq, D], k and v alike."""
    heads, pairs, note = _heads_and_pairs(op, 0)
    return attention_forward(op, heads, pairs, op.inputs[0], note=note)


@varlen_ops("_flash_attention_forward_no_dropout_inplace")
def varlen_forward_into(op: OpSignature) -> OpCost:
    """As _flash_attention_forward, the output given first."""
    heads, pairs, note = _heads_and_pairs(op, 1)
    return attention_forward(op, heads, pairs, op.inputs[1], note=note)


@varlen_ops(
    "_flash_attention_backward _efficient_attention_backward _cudnn_attention_backward "
    "flash_attn::_flash_attn_varlen_backward",
)
def varlen_backward(op: OpSignature) -> OpCost:
    """The output's gradient first, then q, k, v as in the forward op."""
    heads, pairs, note = _heads_and_pairs(op, 1)
    return attention_backward(op, heads, pairs, op.inputs[1], note=note)
